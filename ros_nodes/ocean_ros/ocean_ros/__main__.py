"""`python -m ocean_ros`: the same as the console script `ocean_node`."""

import sys

from ocean_ros.process import main

sys.exit(main())
