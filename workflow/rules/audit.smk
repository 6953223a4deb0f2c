# Other trainers, stopped and resumed as the lab's own is.


rule audit:
    """The audit of all trainers: audit.md."""
    input:
        "audit.md",
    message:
        "The audit is made."


rule audit_tokens:
    """The tokens that audited trainers train on."""
    input:
        tokens=TRAIN,
    output:
        f"{OUT}audit/tokens.npy",
    log:
        f"{OUT}logs/audit_tokens.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("cut_tokens"),
        first=config["audit"]["tokens"],
    message:
        "Cuts the audit's tokens."
    shell:
        "python {params.script:q} --tokens {input.tokens:q} --first {params.first} --out {output:q} 2> {log:q}"


rule audit_trainer:
    """One trainer's audit."""
    input:
        named=lambda wildcards: data_files(TRAINERS[wildcards.trainer]["command"]),
        tokens=f"{OUT}audit/tokens.npy",
    output:
        result=f"{OUT}audit/{{trainer}}.json",
        times=f"{OUT}audit/times/{{trainer}}.json",
    log:
        f"{OUT}logs/audit_{{trainer}}.log",
    wildcard_constraints:
        trainer="|".join(TRAINERS),
    conda:
        "../../envs/conda-audit.yaml"
    threads: 1
    resources:
        # A resource and no param: a trainer that ends before it ends the same.
        process_timeout=lambda wildcards: str(TRAINERS[wildcards.trainer]["timeout"]),
    params:
        **verb("audit_trainer"),
        command=lambda wildcards: TRAINERS[wildcards.trainer]["command"],
        trainer=lambda wildcards: code_digests(TRAINERS[wildcards.trainer]["command"]),
        shell=lambda wildcards: ["--shell"] if TRAINERS[wildcards.trainer]["shell"] else [],
        skip=lambda wildcards: (
            ["--skip", TRAINERS[wildcards.trainer]["skip"]] if TRAINERS[wildcards.trainer]["skip"] else []
        ),
        steps=lambda wildcards: TRAINERS[wildcards.trainer]["steps"],
        stops=lambda wildcards: stop_flags(TRAINERS[wildcards.trainer]),
        save_at=lambda wildcards: TRAINERS[wildcards.trainer]["save_at"],
        weights=lambda wildcards: TRAINERS[wildcards.trainer]["weights"],
        packages=lambda wildcards: [f"--package={name}" for name in TRAINERS[wildcards.trainer]["packages"]],
        versions=lambda wildcards: {name: installed(name) for name in TRAINERS[wildcards.trainer]["packages"]},
        machine=trainers_machine,
        # Without it nothing is said of the save.
        strace=bool(shutil.which("strace")),
        work=f"{OUT}audit/processes/{{trainer}}",
    message:
        "Audits {wildcards.trainer}."
    shell:
        "python {params.script:q} --name={wildcards.trainer:q} --command={params.command:q}"
        " {params.shell:q} {params.skip:q}"
        " --tokens {input.tokens:q}"
        " --steps {params.steps} {params.stops:q} --save-at {params.save_at} --timeout {resources.process_timeout}"
        " --weights={params.weights:q} {params.packages:q} --work {params.work:q} --out {output.result:q}"
        " --times {output.times:q} 2> {log:q}"


rule plot_audit:
    """The picture of all audits."""
    input:
        results=expand(f"{OUT}audit/{{trainer}}.json", trainer=AUDITED),
    output:
        report(f"{OUT}audit.svg", caption="../report/audit.rst", category="Audit"),
    log:
        f"{OUT}logs/plot_audit.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("plot_audit"),
    message:
        "Draws the audit."
    shell:
        "python {params.script:q} {input.results:q} --out {output:q} 2> {log:q}"


rule render_audit:
    """The audit's document, audit.md."""
    input:
        templates=templates("audit"),
        results=expand(f"{OUT}audit/{{trainer}}.json", trainer=AUDITED),
        picture=f"{OUT}audit.svg",
    output:
        report("audit.md", caption="../report/audit.rst", category="Audit"),
    log:
        f"{OUT}logs/render_audit.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("render_audit"),
        cures=[f"--fixed-by={name}={TRAINERS[name]['fixed_by']}" for name in AUDITED if TRAINERS[name]["fixed_by"]],
        advice=[
            f"--advice={name}={TRAINERS[name]['advice'][config['language']]}"
            for name in AUDITED
            if config["language"] in TRAINERS[name]["advice"]
        ],
    message:
        "Writes audit.md."
    shell:
        "python {params.script:q} {input.results:q} --template {input.templates[0]:q}"
        " {params.cures:q} {params.advice:q}"
        " --picture {input.picture:q}"
        " --out {output:q} 2> {log:q}"


rule check_audit:
    """The verdict on every trainer; fails when one that is expected to be exact isn't."""
    input:
        results=expand(f"{OUT}audit/{{trainer}}.json", trainer=AUDITED),
    log:
        f"{OUT}logs/check_audit.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("check_audit"),
        exact=[
            f"--exact={name}" for name in AUDITED if TRAINERS[name]["expect"] == "exact" and not TRAINERS[name]["skip"]
        ],
    message:
        "Checks the audit."
    shell:
        "python {params.script:q} {input.results:q} {params.exact:q} 2> {log:q}"
