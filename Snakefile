# exact-resume: does a stopped and resumed training run equal the uninterrupted one, bit for bit?

from snakemake.utils import min_version

min_version("9.20")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/targets.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/crash.smk"
include: "workflow/rules/audit.smk"


# Stands here since the default target of an included file isn't one.
rule all:
    """The report and all other artifacts; what a bare call makes."""
    default_target: True
    input:
        rules.render_report.output,
        rules.verdict.output,
        rules.plots.output,
        rules.machine.output,
        rules.divergence.output,
        expand(rules.diagnosis.output, run=VARIANTS),
        rules.half.output,
        rules.count_state.output,
        expand(rules.uninterrupted.output, run=["straight", "repeat"]),
        rules.stopped.output,
        expand(RESUMED.output, variant=VARIANTS),
        [TRAIN, VAL],
    message:
        "The report and all that it rests on are made."


onsuccess:
    print_closing_line()
