#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment, and runs its command from another folder on what
# `make report` has made.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
results=$project/results
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$project/.venv/bin/python" -m build --wheel --outdir "$folder" "$project" > "$folder/build.log"
"$project/.venv/bin/python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet -c "$project/envs/constraints.txt" "$folder"/*.whl
cd "$folder"
exact_resume() {
    venv/bin/exact-resume "$@"
}

venv/bin/python -c "from exact_resume import Trace"
exact_resume --version
exact_resume diagnose "$results/trace/straight.csv" "$results/trace/noopt.csv" | tee said.txt
grep -q "optimizer was lost" said.txt
exact_resume compare "$results/straight.pth" "$results/resumed.pth"
status=0
exact_resume compare "$results/straight.pth" "$results/noopt.pth" > differs.txt || status=$?
tail -n 1 differs.txt
test "$status" = 1
exact_resume verify "$results/straight.pth" "$results/resume.pth"
head -c 1000 "$results/resume.pth" > cut.pth
status=0
exact_resume verify cut.pth || status=$?
test "$status" = 1
cat > train.py <<'PROGRAM'
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
PROGRAM
exact_resume record --out recorded -- venv/bin/python train.py
exact_resume diagnose recorded recorded | tee said.txt
grep -q "identical" said.txt
