"""The command line of the counter: arguments, one JSON document, errors in one line each."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import BinaryIO, NoReturn

from .errors import CountError, UsageError
from .shapes import parse_dtype, parse_input

OK, UNKNOWN, USAGE, INTERRUPTED = 0, 3, 64, 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="topsmon.flops",
        description="Count FLOPs, bytes and parameters of a torch module; writes JSON on stdout.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        metavar="MODULE:FACTORY",
        help="what makes the module: torchvision.models:resnet50, model.py:make,"
        " 'torch.nn:Linear(512, 512)'; it may return (module, inputs)",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="an argument of forward, repeated for several: 1x3x224x224, ids=8x128:int64",
    )
    parser.add_argument("--training", action="store_true", help="run in train mode")
    parser.add_argument("--input-grad", action="store_true", help="the inputs need gradients")
    parser.add_argument("--dtype", metavar="DTYPE", help="convert the module: bfloat16, float16")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and warnings")
    return parser


def main(arguments: Sequence[str], output: BinaryIO | None = None) -> int:
    """Count what the arguments name, write the document to `output`, return the exit code.

    0 counted, 3 could not be counted, 64 wrong usage, 130 interrupted; errors go to stderr.
    """
    debug = "--debug" in arguments
    if not debug:
        warnings.simplefilter("ignore")
    try:
        # A model's own prints must not get into the document.
        with contextlib.redirect_stdout(sys.stderr):
            document = _count(_parser().parse_args(list(arguments)))
    except UsageError as error:
        return _fail(str(error), USAGE, debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        if "-h" in arguments or "--help" in arguments:
            return OK
        return _fail(f"the module ended the program (exit code {error.code})", UNKNOWN, debug)
    except Exception as error:  # noqa: BLE001  what the user's code raises while it is imported
        return _fail(_words(error), UNKNOWN, debug)
    stream = sys.stdout.buffer if output is None else output
    stream.write(document)
    stream.flush()
    return OK


def _count(options: argparse.Namespace) -> bytes:
    inputs = [parse_input(text) for text in options.input]
    dtype = None if options.dtype is None else parse_dtype(options.dtype)
    gc.disable()  # it would look through all that torch loads, again and again
    try:
        import torch._dynamo.config  # noqa: F401  what fake tensors import by themselves

        from . import counting, document, model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CountError(f"this interpreter has no torch ({sys.executable})") from error
    finally:
        gc.freeze()
        gc.enable()
    if not options.debug:
        # It prints a traceback for every module that does not fit its inputs.
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL + 1)
    target = model.parse_target(options.target)
    factory = model.find_factory(target)
    chosen = counting.Options(training=options.training, input_grad=options.input_grad, dtype=dtype)
    counted = counting.count(factory, inputs, chosen)
    return json.dumps(document.document(counted, chosen, options.target)).encode() + b"\n"


def _words(error: BaseException) -> str:
    """One line for an exception: a counting error's message, else its type and first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if isinstance(error, CountError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _fail(message: str, code: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    sys.stderr.write(f"topsmon flops: {message}\n")
    return code
