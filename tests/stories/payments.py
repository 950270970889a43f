"""What story 2 leaves to its reader: a payment service and a bank that answer as such do, and the
shop's customers.

Whatever the story asks of its services is answered here: requests come by way of a proxy, which is
this process, so that no port of this machine has to be free.
"""

import asyncio
import json
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import httpx

from parkade import TicketFailed

PAID: dict[str, str] = {}  # idempotency key -> charge: what the service has done
ASKED: Counter[str] = Counter()
BUSY, DECLINED, BROKEN, SILENT = 429, 402, 500, 408  # what the amounts stand for
answers = threading.Event()


class Services(BaseHTTPRequestHandler):
    """The amount says how it goes."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/wire"):
            answers.wait(10)  # the order is there, and the bank says nothing
            return
        key, cents = self.headers["Idempotency-Key"], asked["amount"]
        ASKED[key] += 1
        if cents == BROKEN:
            self.close_connection = True
        elif cents == DECLINED:
            self._answer(402, {"code": "insufficient_funds"})
        elif cents == BUSY and ASKED[key] == 1:
            self._answer(429, {}, ("Retry-After", "0.05"))
        else:
            PAID.setdefault(key, f"ch_{len(PAID) + 1}")
            self._answer(200, {"id": PAID[key]})

    def _answer(self, status: int, body: dict[str, str], *headers: tuple[str, str]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(encoded)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: Any) -> None:
        return


async def main(story: Any) -> None:
    story.http.timeout = httpx.Timeout(0.5)
    shop = httpx.AsyncClient(
        transport=httpx.ASGITransport(story.app), base_url="http://shop", trust_env=False
    )
    async with story.lifespan(story.app), shop:

        async def pay(order: int, cents: int) -> str:
            paid = await shop.post(f"/orders/{order}/pay", params={"cents": cents})
            assert paid.status_code == 202, paid.text
            ticket_id: str = paid.json()["ticket"]
            return ticket_id

        async def end(ticket_id: str) -> Any:
            ticket = story.charge.ticket(ticket_id)
            try:
                return await ticket
            except TicketFailed as error:
                return f"{error.reason}: {error.error_type}"

        first, again = await pay(1, 990), await pay(1, 990)
        print("one ticket:", first == again, await end(first))
        print("too many at first:", await end(await pay(2, BUSY)))
        print("declined:", await end(await pay(3, DECLINED)))
        wired = await story.wire.asubmit(story.Order(4, SILENT))
        try:
            await wired
        except TicketFailed as error:
            info = await wired.ainfo()
            print("wired:", type(error).__name__, info.dead_reason, info.ambiguous)
        answers.set()
        for order in range(10, 15):
            await pay(order, BROKEN)
        held = await pay(20, 990)
        while story.engine.breakers["psp"].state != "open":
            await asyncio.sleep(0.01)
        state = await asyncio.to_thread(shown, shop, held, asyncio.get_running_loop())
        print("held:", state)
    await story.http.aclose()


def shown(shop: httpx.AsyncClient, ticket_id: str, loop: asyncio.AbstractEventLoop) -> str:
    """What the shop's page says of a ticket."""
    asking = asyncio.run_coroutine_threadsafe(shop.get(f"/tickets/{ticket_id}"), loop)
    page = asking.result(10).json()
    return f"{page['state']}, {page['why']}"


with ThreadingHTTPServer(("127.0.0.1", 0), Services) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HTTP_PROXY"] = f"http://127.0.0.1:{server.server_port}"
    os.environ.pop("NO_PROXY", None)
    asyncio.run(main(import_module("s2_paid_api")))
    server.shutdown()
print("charged:", sorted(PAID.values()))
