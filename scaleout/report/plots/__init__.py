"""Pictures, by what they show."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where its cache cannot be, as without a home, it uses another
