"""What story 9 leaves to its reader: an exporter, a test of its tasks, a breaker that opens.

Whatever the story asks of its service is answered here: requests come by way of a proxy, which is
this process, so that no port of this machine has to be free.
"""

import asyncio
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

from parkade.testing import TestEngine

ASKED: Counter[str] = Counter()
PENDING_TIMES = 3


class Exports(BaseHTTPRequestHandler):
    """An export is pending three times, and then it is there."""

    def do_GET(self) -> None:
        ASKED[self.path] += 1
        is_pending = ASKED[self.path] <= PENDING_TIMES
        state = "pending" if is_pending else "done"
        body = f'{{"state": "{state}", "url": "{self.path}.csv"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


async def main(story: Any) -> None:
    async with TestEngine() as engine:
        engine.stand_in_for(story.engine)
        begun = engine.clock.now()
        export, refunded = await story.wait_export.asubmit("7"), await story.refund.asubmit(3)
        await engine.arun_until_idle(skip_time=True)
        print(await export, "after", engine.clock.now() - begun)
        outcomes = [attempt.outcome for attempt in await export.aattempts()]
        print(outcomes, "attempts spent:", (await export.ainfo()).attempts)
        print(refunded.task, await refunded)
        await asyncio.to_thread(engine.breakers.force_open, "exports", reason="their maintenance")
        await engine.arun_until_idle()
    await story.http.aclose()


with ThreadingHTTPServer(("127.0.0.1", 0), Exports) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HTTP_PROXY"] = f"http://127.0.0.1:{server.server_port}"
    os.environ.pop("NO_PROXY", None)
    asyncio.run(main(import_module("s9_small_ones")))
    server.shutdown()
