"""What the Snakemake pipeline is made of besides its rules: staleness, locks, machines, documents, pictures."""
