"""Write-back: makes closed files durable here, then brings every op to the shared tier in its
order, tries again what failed, and reports how it ended.
"""

from tierfs.writeback.records import (
    FlushProgress,
    FlushResult,
    Held,
    Outcome,
    OutcomeKind,
    RetryStatus,
    Statistics,
    Status,
    TransferStatus,
)
from tierfs.writeback.service import WriteBack
from tierfs.writeback.settings import WritebackSettings

__all__ = [
    "FlushProgress",
    "FlushResult",
    "Held",
    "Outcome",
    "OutcomeKind",
    "RetryStatus",
    "Statistics",
    "Status",
    "TransferStatus",
    "WriteBack",
    "WritebackSettings",
]
