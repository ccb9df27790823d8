"""What orders and start-ups of one seat work with, made once and shared."""

import os
from dataclasses import dataclass
from typing import Self

from warmpool.agent.ahead import Stager
from warmpool.agent.board import Board
from warmpool.agent.changes import Changes
from warmpool.agent.config import POD_VARIABLE, AgentConfig
from warmpool.agent.memory import MemoryReader
from warmpool.agent.moving import Mover
from warmpool.agent.room import SeatRoom
from warmpool.agent.slot import Slot
from warmpool.agent.staging import StageDaemon
from warmpool.nodehealth.client import TOKEN_VARIABLE, NodeMemory, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The parts of one seat.

    Attributes:
        config: the seat.
        board: its residents.
        slot: who may work on them.
        reader: measures what they hold.
        room: what fits.
        changes: how engines are told to change.
        mover: moves weights.
        stager: has weights brought into the node's memory ahead; None where there is no stage daemon.
    """

    config: AgentConfig
    board: Board
    slot: Slot
    reader: MemoryReader
    room: SeatRoom
    changes: Changes
    mover: Mover
    stager: Stager | None = None

    @classmethod
    def of(cls, config: AgentConfig, node: NodeMemory | None) -> Self:
        """Make them.

        Args:
            config: the seat.
            node: where device memory is asked for; None on a machine without GPUs.
        """
        board = Board(config)
        stage = None if config.stage_socket is None else StageDaemon(config.stage_socket)
        reader = MemoryReader(board, config.gpus, node, stage)
        room, changes = SeatRoom(config, board, reader), Changes(board, reader)
        return cls(
            config=config,
            board=board,
            slot=Slot(),
            reader=reader,
            room=room,
            changes=changes,
            mover=Mover(board, room, changes),
            stager=None if config.stage_socket is None else Stager(config.stage_socket),
        )


def node_memory(config: AgentConfig) -> NodeMemory | None:
    """Return where the seat's device memory is asked for; None where there is none."""
    if not config.gpus and not config.node_agent:
        return None
    return connect(
        config.node_agent,
        pod=os.environ.get(POD_VARIABLE, ""),
        token=os.environ.get(TOKEN_VARIABLE, ""),
    )
