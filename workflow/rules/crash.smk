# What a save survives: three ways to save, put through kills, errors, power losses and damage.


rule crash:
    """What three ways to save a checkpoint survive: crash.md."""
    input:
        "crash.md",
        f"{OUT}crash.json",
    message:
        "The crash table is made."


rule inject_faults:
    """Three ways to save, put through faults."""
    output:
        report(f"{OUT}crash.json", caption="../report/crash.rst", category="Crash safety"),
    log:
        f"{OUT}logs/inject_faults.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("inject_faults"),
        settings=section("crash"),
        machine=machine,
    message:
        "Kills, breaks and cuts saves."
    shell:
        "python {params.script:q} --out {output:q} --settings {params.settings:q} 2> {log:q}"


rule plot_faults:
    """The picture of what they survive."""
    input:
        counted=f"{OUT}crash.json",
    output:
        report(f"{OUT}crash.svg", caption="../report/crash.rst", category="Crash safety"),
    log:
        f"{OUT}logs/plot_faults.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("plot_faults"),
    message:
        "Draws what saves survive."
    shell:
        "python {params.script:q} --counted {input.counted:q} --out {output:q} 2> {log:q}"


rule render_faults:
    """The table of what they survive, crash.md."""
    input:
        template=f"{TEMPLATES}/crash.{config['language']}.md.j2",
        counted=f"{OUT}crash.json",
        picture=f"{OUT}crash.svg",
    output:
        report("crash.md", caption="../report/crash.rst", category="Crash safety"),
    log:
        f"{OUT}logs/render_faults.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        **verb("render_faults"),
        settings=section("crash"),
    message:
        "Writes crash.md."
    shell:
        "python {params.script:q} --template {input.template:q} --counted {input.counted:q} --picture {input.picture:q}"
        " --out {output:q} --settings {params.settings:q} 2> {log:q}"
