"""parkade: an embedded, durable, sharded ticket engine. The public surface."""
