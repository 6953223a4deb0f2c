# Other trainers, stopped and resumed as the lab's own is.


rule audit:
    input:
        "audit.md",


rule audit_tokens:
    input:
        code=code("cut_tokens"),
        tokens=TRAIN,
    output:
        f"{OUT}audit/tokens.npy",
    log:
        f"{OUT}logs/audit_tokens.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        first=config["audit"]["tokens"],
    shell:
        "python {input.code[0]:q} --tokens {input.tokens:q} --first {params.first} --out {output:q} 2> {log:q}"


rule audit_trainer:
    input:
        code=code("audit_trainer"),
        trainer=lambda wildcards: files(TRAINERS[wildcards.trainer]["command"]),
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
        command=lambda wildcards: TRAINERS[wildcards.trainer]["command"],
        shell=lambda wildcards: ["--shell"] if TRAINERS[wildcards.trainer]["shell"] else [],
        skip=lambda wildcards: ["--skip", TRAINERS[wildcards.trainer]["skip"]] if TRAINERS[wildcards.trainer]["skip"] else [],
        steps=lambda wildcards: TRAINERS[wildcards.trainer]["steps"],
        stops=lambda wildcards: stop_flags(TRAINERS[wildcards.trainer]),
        save_at=lambda wildcards: TRAINERS[wildcards.trainer]["save_at"],
        weights=lambda wildcards: TRAINERS[wildcards.trainer]["weights"],
        packages=lambda wildcards: [f"--package={name}" for name in TRAINERS[wildcards.trainer]["packages"]],
        versions=lambda wildcards: {name: installed(name) for name in TRAINERS[wildcards.trainer]["packages"]},
        cpu=[MACHINE["cpu"], MACHINE["simd"]],
        # Without it nothing is said of the save.
        strace=bool(shutil.which("strace")),
        work=f"{OUT}audit/processes/{{trainer}}",
    shell:
        "python {input.code[0]:q} --name={wildcards.trainer:q} --command={params.command:q} {params.shell:q} {params.skip:q} --tokens {input.tokens:q}"
        " --steps {params.steps} {params.stops:q} --save-at {params.save_at} --timeout {resources.process_timeout}"
        " --weights={params.weights:q} {params.packages:q} --work {params.work:q} --out {output.result:q} --times {output.times:q} 2> {log:q}"


rule plot_audit:
    input:
        code=code("plot_audit"),
        results=expand(f"{OUT}audit/{{trainer}}.json", trainer=AUDITED),
    output:
        report(f"{OUT}audit.svg", caption="../report/audit.rst", category="Audit"),
    log:
        f"{OUT}logs/plot_audit.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    shell:
        "python {input.code[0]:q} {input.results:q} --out {output:q} 2> {log:q}"


rule render_audit:
    input:
        code=code("render_audit"),
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
        cures=[f"--fixed-by={name}={TRAINERS[name]['fixed_by']}" for name in AUDITED if TRAINERS[name]["fixed_by"]],
        advice=[
            f"--advice={name}={TRAINERS[name]['advice'][config['language']]}"
            for name in AUDITED
            if config["language"] in TRAINERS[name]["advice"]
        ],
    shell:
        "python {input.code[0]:q} {input.results:q} --template {input.templates[0]:q} {params.cures:q} {params.advice:q} --picture {input.picture:q}"
        " --out {output:q} 2> {log:q}"


rule check_audit:
    input:
        code=code("check_audit"),
        results=expand(f"{OUT}audit/{{trainer}}.json", trainer=AUDITED),
    log:
        f"{OUT}logs/check_audit.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        exact=[f"--exact={name}" for name in AUDITED if TRAINERS[name]["expect"] == "exact" and not TRAINERS[name]["skip"]],
    shell:
        "python {input.code[0]:q} {input.results:q} {params.exact:q} 2> {log:q}"
