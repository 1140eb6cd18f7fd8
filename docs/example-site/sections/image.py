"""Which image the node was booted from. Runs on the node: Python 3.8, standard library only."""

import os


def collect(request):
    """Return the image's version; None where the node does not know."""
    version = os.environ.get("SITE_IMAGE")
    if version is None and os.path.exists("/etc/site-image"):
        with open("/etc/site-image") as file:
            version = file.read(100).strip()
    return {"version": version}
