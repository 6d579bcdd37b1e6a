"""Report: a run as one HTML file that needs no server, no network and no other file.

- `writer`: The report's writer: reads a run once, one trajectory in memory at a time, and writes as
  it goes.
- `pieces`: Pieces: the text of each sampled token, found by decoding; nothing is ever encoded.
- `timeline`: Timeline: what happened in a trajectory, in order, as small arrays that the page
  draws.
"""

from holdfast.evaluation.report.writer import MAX_BYTES as MAX_BYTES
from holdfast.evaluation.report.writer import Written as Written
from holdfast.evaluation.report.writer import report_file as report_file
from holdfast.evaluation.report.writer import write_report as write_report

__all__ = ["MAX_BYTES", "Written", "report_file", "write_report"]
