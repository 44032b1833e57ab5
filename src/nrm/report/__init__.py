"""Reports: everything about one prediction on one page, a single file that needs no network and no server.

``R.report("report.html")`` writes it, ``R.report()`` shows it in a notebook.
"""

from nrm.report.page import Report
from nrm.report.view import View

__all__ = ["Report", "View"]
