"""The nouns that the verbs in the folder above share. Nothing here knows Snakemake or a command line."""
