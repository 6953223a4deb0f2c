# What a reader sees.


rule plots:
    """The report's pictures."""
    input:
        logs=expand(f"{OUT}{{run}}_log.csv", run=["straight", *VARIANTS]),
        steps=f"{OUT}divergence_steps.csv",
    output:
        losses=report(f"{OUT}losses.svg", caption="../report/losses.rst", category="Pictures"),
        divergence=report(f"{OUT}divergence.svg", caption="../report/distance.rst", category="Pictures"),
    log:
        f"{OUT}logs/plots.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("plot"),
        logs=lambda wildcards, input: [flag for path in input.logs for flag in ("--log", path)],
        stops=[flag for stop in STOPS for flag in ("--stop-at", stop)],
    message:
        "Draws the pictures."
    shell:
        "python {params.script:q} {params.logs:q} --steps {input.steps:q} {params.stops}"
        " --losses {output.losses:q} --divergence {output.divergence:q} 2> {log:q}"


rule render_report:
    """The report, report.md."""
    input:
        templates=templates("report"),
        verdict=f"{OUT}verdict.json",
        divergence=f"{OUT}divergence.json",
        numel=f"{OUT}optim.json",
        file=f"{OUT}resume.json",
        half=f"{OUT}fp16.json",
        machine=f"{OUT}machine.json",
        diagnoses=expand(f"{OUT}diagnosis/{{run}}.json", run=VARIANTS),
        log=f"{OUT}straight_log.csv",
        losses=f"{OUT}losses.svg",
        pictured=f"{OUT}divergence.svg",
    output:
        report("report.md", caption="../report/report.rst", category="Report"),
    log:
        f"{OUT}logs/render_report.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("render_report"),
        settings=section("model", "training", "variants"),
        diagnoses=lambda wildcards, input: [flag for path in input.diagnoses for flag in ("--diagnosis", path)],
    message:
        "Writes report.md."
    shell:
        "python {params.script:q} --template {input.templates[0]:q} --verdict {input.verdict:q}"
        " --divergence {input.divergence:q}"
        " --numel {input.numel:q} --file {input.file:q} --half {input.half:q}"
        " --machine {input.machine:q} --log {input.log:q}"
        " {params.diagnoses:q} --losses {input.losses:q} --pictured-divergence {input.pictured:q} --out {output:q}"
        " --settings {params.settings:q} 2> {log:q}"
