# The runs: twice without a stop, once up to the first stop, and from there once for each variant.


rule uninterrupted:
    """A run without a stop."""
    input:
        tokens=TRAIN,
    output:
        weights=f"{OUT}{{run}}.pth",
        log=f"{OUT}{{run}}_log.csv",
        record=f"{OUT}{{run}}_record.npz",
        trace=f"{OUT}trace/{{run}}.csv",
    log:
        f"{OUT}logs/{{run}}.log",
    wildcard_constraints:
        run="straight|repeat",
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    resources:
        save_every=SAVE_EVERY,
    params:
        **verb("train"),
        settings=training_settings(),
        machine=machine,
    message:
        "Trains {wildcards.run} without a stop."
    shell:
        "python {params.script:q} --tokens {input.tokens:q} --out {output.weights:q} --log {output.log:q}"
        " --record {output.record:q} --trace {output.trace:q} --save-every {resources.save_every}"
        " --settings {params.settings:q} 2> {log:q}"


rule stopped:
    """The run up to the first stop, and the resume file that it leaves."""
    input:
        tokens=TRAIN,
    output:
        resume=f"{OUT}resume.pth",
        trace=f"{OUT}trace/resume.csv",
    log:
        f"{OUT}logs/resume.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    resources:
        save_every=SAVE_EVERY,
    params:
        **verb("train"),
        stop_at=STOPS[0],
        settings=training_settings(),
        machine=machine,
    message:
        "Trains up to step {params.stop_at} and stops."
    shell:
        "python {params.script:q} --tokens {input.tokens:q} --stop-at {params.stop_at} --out {output.resume:q}"
        " --trace {output.trace:q} --save-every {resources.save_every}"
        " --settings {params.settings:q} 2> {log:q}"


rule variant:
    """A resumed run, with what its recipe leaves out, rounds or replays."""
    input:
        tokens=TRAIN,
        resume=lambda wildcards: resume_file(wildcards.variant, len(STOPS) - 1),
    output:
        result=f"{OUT}{{variant}}.pth",
        log=f"{LAST_LEG}{{variant}}_log.csv",
        record=f"{LAST_LEG}{{variant}}_record.npz",
        trace=f"{LAST_LEG}trace/{{variant}}.csv",
    log:
        f"{OUT}logs/variant_{{variant}}.log",
    wildcard_constraints:
        variant="|".join(VARIANTS),
    conda:
        "../../envs/conda.yaml"
    threads: config["training"]["threads"]
    resources:
        save_every=SAVE_EVERY,
    params:
        **verb("train"),
        recipe=recipe,
        stop=[],
        settings=training_settings(),
        machine=machine,
    message:
        "Resumes as {wildcards.variant}."
    shell:
        "python {params.script:q} --tokens {input.tokens:q} --resume {input.resume:q} {params.recipe:q} {params.stop:q}"
        " --out {output.result:q} --log {output.log:q} --record {output.record:q} --trace {output.trace:q}"
        " --save-every {resources.save_every} --settings {params.settings:q} 2> {log:q}"


if len(STOPS) > 1:

    # From each stop but the last to the next one.
    use rule variant as leg with:
        input:
            tokens=TRAIN,
            resume=lambda wildcards: resume_file(wildcards.variant, STOPS.index(int(wildcards.stop)) - 1),
        output:
            result=f"{OUT}legs/{{variant}}_{{stop}}.pth",
            log=f"{OUT}legs/{{variant}}_{{stop}}_log.csv",
            record=f"{OUT}legs/{{variant}}_{{stop}}_record.npz",
            trace=f"{OUT}legs/trace/{{variant}}_{{stop}}.csv",
        log:
            f"{OUT}logs/variant_{{variant}}.{{stop}}.log",
        wildcard_constraints:
            variant="|".join(VARIANTS),
            stop="|".join(map(str, STOPS[1:])),
        params:
            **verb("train"),
            recipe=recipe,
            stop=lambda wildcards: ["--stop-at", wildcards.stop],
            settings=training_settings(),
            machine=machine,
        message:
            "Resumes as {wildcards.variant} up to step {wildcards.stop}."

    rule join_legs:
        """What the processes of a run that is stopped several times leave, joined."""
        input:
            log=legs("{variant}{stop}_log.csv"),
            record=legs("{variant}{stop}_record.npz"),
            trace=legs("trace/{variant}{stop}.csv"),
        output:
            log=f"{OUT}{{variant}}_log.csv",
            record=f"{OUT}{{variant}}_record.npz",
            trace=f"{OUT}trace/{{variant}}.csv",
        log:
            f"{OUT}logs/variant_{{variant}}.joined.log",
        wildcard_constraints:
            variant="|".join(VARIANTS),
        conda:
            "../../envs/conda.yaml"
        threads: 1
        params:
            **verb("join_legs"),
        message:
            "Joins the legs of {wildcards.variant}."
        shell:
            "python {params.script:q} --log {input.log:q} --out-log {output.log:q} --record {input.record:q}"
            " --out-record {output.record:q} --trace {input.trace:q} --out-trace {output.trace:q} 2> {log:q}"


# Whose outputs are a resumed run's, from the first stop to the end.
RESUMED = rules.join_legs if len(STOPS) > 1 else rules.variant
