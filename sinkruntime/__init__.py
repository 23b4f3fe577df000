"""The data plane of sinkjob, and what both planes share.

Called by the driver, by executors, by the command line and by the operator (`sinkoperator`).
Never imports `sinkoperator`; importing this package alone starts nothing and reads only its version.
"""

from importlib.metadata import version

__version__ = version("sinkjob")
