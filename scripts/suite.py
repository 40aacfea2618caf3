"""Compile and validate the models of the suite, each in a process of its own, and make a table of it.

python -m scripts.suite                                       # all of them at smoke size, fp32
python -m scripts.suite resnet18 gpt2 --precision fp32,amp    # some of them
python -m scripts.suite --quick                               # a few of each family, for CI
python -m scripts.suite --size full --device cuda --peers eager,inductor --tier listed
python -m scripts.suite --resume outputs/suite/2026-11-30-14-00-00             # what a run did not come to
python -m scripts.suite --resume outputs/suite/2026-11-30-14-00-00 --again     # and what did not pass in it

Leaves a folder: `records.jsonl`, a line a job as it ends; `jobs/`, what each run leaves; `summary/`, the table as
Markdown and HTML. Exit code: 0 where every job passed that eager can run, 1 where one did not, 2 for something to mend.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import count
from pathlib import Path

from pipeline.models.suite import Entry, entries
from pipeline.suite import record as records
from pipeline.suite import table
from pipeline.suite.job import Settings
from pipeline.suite.pool import Limits, run_jobs
from pipeline.suite.record import EAGER_FAILS, PASSED, Job, Record
from pipeline.tracking import Payload, TrackingConfig, TrackingError, default_uri, git_revision, send, write_payload
from stages.benchmark.config import PEERS
from stages.ir.errors import UserError, choose

# Of every family, and of every kind of architecture, one that takes seconds.
QUICK = (
    *("albert_base", "gpt2", "t5_small", "llama_3_2_1b", "mamba_130m", "whisper_tiny", "vits_ljs"),
    *("mobilenetv3_large_100", "swin_base_patch4_window7_224", "vit_base_patch16_224", "gmlp_s16_224"),
    *("resnet18", "fcos_resnet50_fpn", "raft_small", "dlrm", "lstm_language_model", "dcgan_generator"),
    *("ddpm_cifar10", "dit_xl_2_256"),
)
PRECISIONS = ("fp32", "tf32", "amp", "bf16", "fp16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as `arguments` say; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            for entry in chosen(options):
                print(f"{entry.name:44} {entry.family:18} {entry.tier:7} {entry.parameters_m:10.2f} M")
            return 0
        return _run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.suite", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries of the suite (default: all)")
    parser.add_argument("--names", dest="more", metavar="A,B", type=_words, default=[], help="the same, with commas")
    parser.add_argument("--family", type=_words, help="only entries of these families")
    parser.add_argument("--tier", choices=("listed", "extra"), help="only entries of this tier")
    parser.add_argument("--quick", action="store_true", help="a few of each family")
    parser.add_argument("--list", action="store_true", help="name the entries and stop")
    parser.add_argument("--size", choices=("smoke", "full"), default="smoke")
    parser.add_argument("--precision", type=_words, default=["fp32"], help="one or several, with commas")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peers", type=_words, default=[], help=f"time these too, of: {', '.join(PEERS)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further override")
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one job (default: 600)")
    parser.add_argument("--memory", type=float, default=0.0, help="MiB for one job (default: no limit)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="the output folder (default: outputs)")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the run in this folder")
    parser.add_argument("--again", action="store_true", help="with --resume: also what did not pass")
    parser.add_argument("--tracking", action="store_true", help="log every job and the table to MLflow")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def chosen(options: argparse.Namespace) -> list[Entry]:
    """The entries that the options name, in the order of the names. Raises `UserError` on an unknown one."""
    suite = entries()
    names = [choose("NAME", name, suite) for name in (*options.names, *options.more)]
    names = names or list(QUICK if options.quick else suite)
    families = {entry.family for entry in suite.values()}
    wanted = {choose("--family", family, families) for family in options.family or families}
    named = [suite[name] for name in dict.fromkeys(names)]
    return [entry for entry in named if entry.family in wanted and options.tier in (None, entry.tier)]


def _run(options: argparse.Namespace) -> int:
    for precision in options.precision:
        choose("--precision", precision, PRECISIONS)
    for peer in options.peers:
        choose("--peers", peer, PEERS)
    jobs = [Job(entry.name, precision) for precision in options.precision for entry in chosen(options)]
    folder, settings = _folder(options)
    lines = folder / "records.jsonl"
    done = records.read(lines)
    todo = records.left(jobs, done, options.again)
    print(f"{len(todo)} of {len(jobs)} jobs to do; results in {folder}", flush=True)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that jobs end with the run
    begin = time.time()
    try:
        limits = Limits(options.workers, options.timeout, options.memory)
        for number, record in enumerate(run_jobs(todo, settings, folder / "jobs", limits)):
            records.append(lines, record)
            done[record.job] = record
            print(f"{number + 1:4}/{len(todo)} {_line(record)}", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        _summarise(folder, settings, done.values(), options.tracking, begin)
    return int(any(job not in done or done[job].status not in (PASSED, EAGER_FAILS) for job in jobs))


def _folder(options: argparse.Namespace) -> tuple[Path, Settings]:
    """The folder of the run and its settings, which a run that goes on keeps."""
    settings = Settings(options.size, options.device, tuple(options.peers), tuple(options.set), options.tracking)
    if options.resume is None:
        base = options.outputs.absolute() / "suite" / f"{datetime.now():%Y-%m-%d-%H-%M-%S}"
        folder = next(path for n in count(1) if not (path := base.with_name(base.name + f"-{n}" * (n > 1))).exists())
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text(json.dumps(asdict(settings), indent=1) + "\n", encoding="utf-8")
        return folder, settings
    folder = options.resume.absolute()
    try:
        values = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        mend = "name a folder of outputs/suite"
        raise UserError(f"--resume {options.resume}: no suite run: {error}", mend) from error
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return folder, Settings(**plain)


def _line(record: Record) -> str:
    ratio = "" if record.error_ratio is None else f"error {record.error_ratio:.2f} × eager's"
    breaks = f", {len(record.breaks)} breaks" if record.breaks else ""
    return f"{record.status:8} {record.job!s:52} {record.seconds:6.1f} s  {ratio}{breaks}  {record.reason}"


def _summarise(folder: Path, settings: Settings, done: Sequence[Record], tracking: bool, begin: float) -> None:
    """Write the tables, and log them where runs are logged."""
    done = list(done)
    if not done:
        return
    summary = folder / "summary"
    summary.mkdir(exist_ok=True)
    title = f"The model suite at {settings.size} size on {settings.device}"
    command = shlex.join(["python", "-m", "scripts.suite", *sys.argv[1:]])
    (summary / "table.md").write_text(table.markdown(done, title, command), encoding="utf-8")
    (summary / "table.html").write_text(table.html(done, title, command), encoding="utf-8")
    for line in table.summary(done):
        print(line)
    print(f"tables in {summary}")
    if tracking:
        _log(summary, settings, done, begin)


def _log(summary: Path, settings: Settings, done: Sequence[Record], begin: float) -> None:
    passed = [record for record in done if record.status == PASSED]
    metrics = {"jobs": float(len(done)), "passed": float(len(passed))}
    metrics |= {f"captured.{precision}": 0.0 for precision in {record.precision for record in done}}
    for record in done:
        metrics[f"captured.{record.precision}"] += record.captured
    metrics |= {f"speedup_ratio.{name}": mean for name, mean in table.geometric_means(passed).items()}
    status = "passed" if len(passed) == len(done) else "failed"
    config = TrackingConfig()
    payload = Payload(
        name=f"suite-{settings.size}-{settings.device}",
        experiment=config.experiment,
        status=status,
        start_ms=int(begin * 1e3),
        end_ms=int(time.time() * 1e3),
        parameters={key: str(value) for key, value in asdict(settings).items()},
        metrics=metrics,
        tags={"status": status, "git_revision": git_revision()},
    )
    write_payload(payload, summary)
    uri = default_uri(summary.parents[2])
    try:
        print(f"logged to MLflow: run {send(payload, summary, uri, config.timeout_seconds)}, store {uri}")
    except TrackingError as error:
        print(f"not logged to MLflow: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
