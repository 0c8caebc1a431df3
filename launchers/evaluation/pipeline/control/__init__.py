"""Control of a running evaluation: requests, the server that receives them, its client, running in the background."""
