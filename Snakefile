# exact-resume: does a stopped and resumed training run equal the uninterrupted one, bit for bit?

from snakemake.utils import min_version

min_version("9.20")


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
    default_target: True
    input:
        "report.md",


onsuccess:
    print_closing_line()
