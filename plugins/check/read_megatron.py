"""Settings out of Megatron's arguments."""

from __future__ import annotations

from partita.plugins.check.batch import completed
from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, problem, warning
from partita.plugins.check.layers import layers_of_stages
from partita.plugins.check.settings import LARGEST, Asked, Batch, Settings

BATCH = {"micro": "--micro-batch-size", "accumulation": "micro-batches", "total": "--global-batch-size"}
SIZES = {
    "layers": "--num-layers", "heads": "--num-attention-heads", "kv_heads": "--num-query-groups",
    "hidden": "--hidden-size", "vocabulary": "--vocab-size", "experts": "--num-experts",
}  # fmt: skip
PARALLEL = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "sp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}  # fmt: skip


def read_megatron(document: Document, asked: Asked) -> tuple[Settings, list[Finding]]:
    """Settings, and what is wrong with the values themselves."""
    findings: list[Finding] = []
    numbers = {name: number(document, flag, findings) for name, flag in (SIZES | PARALLEL).items()}
    for name, given in (("tp", asked.tp), ("pp", asked.pp)):
        if given and numbers[name] and given != numbers[name]:
            flag = PARALLEL[name]
            message = f"{flag} is {numbers[name]}, and --{name} {given} was given; leave out one"
            findings.append(problem(document.place(flag), message))
    tp, pp = numbers["tp"] or asked.tp or 1, numbers["pp"] or asked.pp or 1
    seq = number(document, "--seq-length", findings)
    if seq and asked.seq and seq != asked.seq:
        message = f"--seq-length is {seq}, and --seq {asked.seq} was given; leave out one"
        findings.append(problem(document.place("--seq-length"), message))
    devices = asked.devices or _launched(document)
    micro = number(document, BATCH["micro"], findings)
    total = number(document, BATCH["total"], findings)
    split, found = layers_of_stages(document, numbers["layers"], pp)
    findings += found
    names = {**SIZES, **PARALLEL, **BATCH, "seq": "--seq-length", "zero": "--use-distributed-optimizer",
             "precision": "--bf16" if "--bf16" in document.values else "--fp16"}  # fmt: skip
    kv_heads = numbers["kv_heads"] if "--group-query-attention" in document.values else None
    sizes = {name: numbers[name] for name in (*SIZES, "ep")} | {"kv_heads": kv_heads}
    settings = Settings(
        framework="megatron", main=document.place(), devices=devices, tp=tp, pp=pp, sp=numbers["sp"] or 1,
        written=Batch(micro, None, total), zero=1 if "--use-distributed-optimizer" in document.values else 0,
        precision="bf16" if "--bf16" in document.values else "fp16" if "--fp16" in document.values else "fp32",
        optimizer="sgd" if document.values.get("--optimizer") == "sgd" else "adam",
        recompute=document.values.get("--recompute-granularity") == "full",
        seq=seq or asked.seq, sequence_parallel="--sequence-parallel" in document.values and tp > 1,
        layers=split, sizes={name: size for name, size in sizes.items() if size is not None},
        places=asked.places(document.file)
        | {name: document.place(flag) for name, flag in names.items() if flag in document.values},
        chunks=number(document, "--num-virtual-stages-per-pipeline-rank", findings) or (
            2 if "--num-layers-per-virtual-pipeline-stage" in document.values else 1
        ),
        keys=BATCH,
    )  # fmt: skip
    return completed(settings), findings


def number(document: Document, flag: str, findings: list[Finding], least: int = 1) -> int | None:
    """The whole number after a flag; None without the flag, or with a finding where it is none."""
    text = document.values.get(flag)
    if flag in document.unset:
        message = f"{flag} is {document.unset[flag]}, which the file doesn't set to a plain value: it isn't checked"
        findings.append(warning(document.place(flag), message))
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= LARGEST:
        message = f"{flag} {text}: a whole number from {least} to {LARGEST:,} is needed"
        findings.append(problem(document.place(flag), message))
        return None
    return int(text)


def _launched(document: Document) -> int | None:
    """Processes that torchrun would start, where the script says so in numbers."""
    each, nodes = document.values.get("--nproc-per-node"), document.values.get("--nnodes", "1")
    if each is None or nodes is None or not each.isdecimal() or not nodes.isdecimal():
        return None
    count = int(each[:18]) * int(nodes[:18])
    return count if 0 < count <= LARGEST else None
