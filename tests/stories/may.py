"""What story 7 leaves to its reader: an engine, its users, one of whom has no mailbox."""

import asyncio
from importlib import import_module
from typing import Any

story: Any = import_module("s7_campaign")
USERS = ["bad@example.org", *(f"user-{n}@example.org" for n in range(2_000))]


async def main() -> None:
    engine = story.engine
    async with engine:
        # So slowly that most of the mail is still to be sent when the first one fails.
        await asyncio.to_thread(engine.limits.set, "task:app.send_mail", rate=(20, "1s"))
        await story.campaign(USERS)
        left = await engine.afind(tag=("campaign", "may"), state="ready")
        print(len(left.items), "left")


asyncio.run(main())
