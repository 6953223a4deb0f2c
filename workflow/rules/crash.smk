# What a save survives: three ways to save, put through kills, errors, power losses and damage.


rule crash:
    input:
        "crash.md",
        f"{OUT}crash.json",


rule inject_faults:
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
    shell:
        "python {params.script:q} --out {output:q} --settings {params.settings:q} 2> {log:q}"


rule plot_faults:
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
    shell:
        "python {params.script:q} --counted {input.counted:q} --out {output:q} 2> {log:q}"


rule render_faults:
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
    shell:
        "python {params.script:q} --template {input.template:q} --counted {input.counted:q} --picture {input.picture:q}"
        " --out {output:q} --settings {params.settings:q} 2> {log:q}"
