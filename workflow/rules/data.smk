# Text to tokens. With token files of the user's own there is nothing to do.

if not config["data"]["train"]:

    rule encode_corpus:
        """The corpus as tokens."""
        input:
            corpus=CORPUS if config["data"]["corpus"] else [],
        output:
            train=TRAIN,
            val=VAL,
        log:
            f"{OUT}logs/encode_corpus.log",
        conda:
            "../../envs/conda.yaml"
        threads: 1
        params:
            **verb("encode_corpus"),
            corpus=["--corpus", config["data"]["corpus"]] if config["data"]["corpus"] else [],
            validation=config["data"]["validation"],
            # Stands for the default corpus' text; its files lie outside the project.
            package=None if config["data"]["corpus"] else version("snakemake"),
        message:
            "Encodes the corpus."
        shell:
            "python {params.script:q} {params.corpus:q} --validation {params.validation}"
            " --train {output.train:q} --val {output.val:q} 2> {log:q}"
