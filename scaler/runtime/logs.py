"""Logs: one event a line on stderr, JSON for machines and short lines for people at a terminal."""

import logging
import os
import sys

import structlog


def configure(*, verbose: bool = False) -> None:
    """Set structlog up for this process. Call once, first thing.

    Args:
        verbose: show debug lines too.
    """
    terminal = sys.stderr.isatty()
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=terminal and "NO_COLOR" not in os.environ)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(
            sys.stderr
        ),  # stderr as it is at each line, not as it was
    )
