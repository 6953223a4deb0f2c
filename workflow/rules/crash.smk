# What a save survives: three ways to save, put through kills, errors, power losses and damage.


rule crash:
    input:
        "crash.md",
        f"{OUT}crash.json",


rule inject_faults:
    input:
        code=code("inject_faults"),
    output:
        report(f"{OUT}crash.json", caption="../report/crash.rst", category="Crash safety"),
    log:
        f"{OUT}logs/inject_faults.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    params:
        settings=section("crash"),
        machine=MACHINE,
    shell:
        "python {input.code[0]:q} --out {output:q} --settings {params.settings:q} 2> {log:q}"


rule plot_faults:
    input:
        code=code("plot_faults"),
        counted=f"{OUT}crash.json",
    output:
        report(f"{OUT}crash.svg", caption="../report/crash.rst", category="Crash safety"),
    log:
        f"{OUT}logs/plot_faults.log",
    conda:
        "../../envs/conda.yaml"
    threads: 1
    shell:
        "python {input.code[0]:q} --counted {input.counted:q} --out {output:q} 2> {log:q}"


rule render_faults:
    input:
        code=code("render_faults"),
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
        settings=section("crash"),
    shell:
        "python {input.code[0]:q} --template {input.template:q} --counted {input.counted:q} --picture {input.picture:q}"
        " --out {output:q} --settings {params.settings:q} 2> {log:q}"
