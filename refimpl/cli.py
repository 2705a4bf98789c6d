"""``argmax-parity``: what is done with the suite's files after a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from refimpl import __version__
from refimpl.ranks.limits import Limits

USAGE_ERROR = 4


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="argmax-parity", description=__doc__)
    parser.add_argument("--version", action="version", version=f"argmax-parity {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    replay = commands.add_parser("replay", help="run one recorded case again: fixed, still fails, or could not run")
    replay.add_argument("case", type=Path, metavar="CASE.json", help="a case file as a report names it")
    replay.add_argument(
        "--path", "--topk-path", metavar="NAME", help="another path than the recorded one, of the same contract"
    )
    replay.add_argument("--backend", choices=("auto", "nccl", "gloo"), help="another backend than the recorded one")
    replay.add_argument("--rank-timeout", metavar="SECONDS", help="for the case (default: 10)")
    replay.add_argument("--setup-timeout", metavar="SECONDS", help="for the path's import and setup (default: 120)")

    sort = commands.add_parser(
        "sort-table",
        help="write a checkpoint with its D2T table sorted and every draft-indexed tensor permuted alike",
        description="Then shows that the rows moved byte for byte. Nothing is overwritten; memory is bounded.",
    )
    sort.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a folder with safetensors weights")
    sort.add_argument("out", type=Path, metavar="OUT", help="a folder that does not exist yet")
    for name, meaning in (("--also", "has draft ids as its rows"), ("--leave", "has the same length by chance")):
        sort.add_argument(name, action="append", default=[], metavar="TENSOR", help=f"a tensor that {meaning}")

    check = commands.add_parser(
        "verify", help="check a certificate against the files on disk, and its digest or signature"
    )
    check.add_argument("certificate", type=Path, metavar="CERTIFICATE.json")
    check.add_argument("--key", type=Path, metavar="PUBLIC.pem", help="the certificate must carry this key's signature")
    check.add_argument("--checkpoint", type=Path, metavar="DIR", help="where the checkpoint is now")
    check.add_argument("--target-checkpoint", type=Path, metavar="DIR", help="where the target's checkpoint is now")
    check.add_argument("--path", metavar="NAME", help="it must hold a verdict on this path")
    check.add_argument("--head", metavar="NAME", help="it must hold a verdict on this head")
    check.add_argument("--accept-conditions", action="store_true", help="a CONDITIONAL verdict is good enough")

    try:
        options = parser.parse_args(arguments)
    except SystemExit as error:
        # argparse exits with 2 on a bad command line; this suite uses pytest's 4.
        return USAGE_ERROR if error.code == 2 else int(error.code or 0)
    if options.command == "sort-table":
        from refimpl.sort_table import sort_table

        return sort_table(options.checkpoint, options.out, tuple(options.also), tuple(options.leave))
    if options.command == "verify":
        from refimpl.verify import Wanted, verify

        wanted = Wanted(options.checkpoint, options.target_checkpoint, options.path, options.head)
        return verify(options.certificate, options.key, wanted, options.accept_conditions)
    from refimpl.replay import could_not, replay_case

    try:
        limits = Limits.of(options.rank_timeout, options.setup_timeout)
    except ValueError as error:
        return could_not(str(error))
    return replay_case(options.case, path=options.path, backend=options.backend, limits=limits)


if __name__ == "__main__":
    sys.exit(main())
