"""A small HTTP server that answers like a provider and fails on command.

It speaks Chat Completions (`…/chat/completions`) and Messages (`…/messages`). Each request takes the
next step of `plan`; when the plan is used up, or empty, the step is `ok`. It listens on 127.0.0.1 alone,
on a free port, and stops by itself after `seconds` or `most` requests, whatever happens to its owner.

    with FaultServer(["429", "ok"]) as server: ...      # server.url, server.requests
    python tests/faultserver.py --seconds 30 --delay 0.02   # prints its address; for benchmarks
"""
import argparse, asyncio, json, threading
from email.utils import formatdate
from time import time

REASONS = {200: "OK", 301: "Moved Permanently", 400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error"}


def chat(text, finish="stop", model="tiny", **message):
    return dict(id="c1", object="chat.completion", created=1, model=model, usage=dict(prompt_tokens=7, completion_tokens=3, total_tokens=10),
                choices=[dict(index=0, finish_reason=finish, logprobs=None, message=dict(role="assistant", content=text) | message)])


def messages(text, reason="end_turn", model="tiny"):
    return dict(id="m1", type="message", role="assistant", model=model, stop_reason=reason, stop_sequence=None,
                content=[dict(type="text", text=text)] if text else [], usage=dict(input_tokens=7, output_tokens=3))


def error_body(openai, message, kind, code=None):
    if openai: return dict(error=dict(message=message, type=kind, code=code, param=None))
    return dict(type="error", error=dict(type=kind, message=message))


def with_logprobs():
    body = chat("Yes")
    top = [dict(token="Yes", logprob=-0.1, bytes=None), dict(token="\ufffd", logprob=-3.0, bytes=[240]), dict(token="\ufffd", logprob=-4.0, bytes=[241])]
    body["choices"][0]["logprobs"] = dict(content=[dict(token="Yes", logprob=-0.1, bytes=None, top_logprobs=top)])
    return body


UNICODE = "Grüße, 数学 ∀x 🙂 \u202e\u0000 نص"
SURROGATE = "half an emoji \ud83d and on"   # json.dumps writes it as \ud83d, which strict parsers refuse
KEY_ECHO = "Incorrect API key provided: {key}. You can find yours at https://example.org"


def answer(step, openai, text, key):
    "status, extra headers, body (bytes, or a value to be written as JSON) for one step"
    good = (lambda t, finish="stop", **m: chat(t, finish, **m)) if openai else (
        lambda t, finish="stop", **m: messages(t, dict(stop="end_turn", length="max_tokens").get(finish, finish)))
    err = lambda *a: error_body(openai, *a)
    later = formatdate(time() + 9, usegmt=True)
    table = {
        "ok": lambda: (200, {}, good(text)),
        "unicode": lambda: (200, {}, good(UNICODE)),
        "surrogate": lambda: (200, {}, good(SURROGATE)),
        "empty": lambda: (200, {}, good("")),
        "length": lambda: (200, {}, good("cut of", "length")),
        "empty_length": lambda: (200, {}, good("", "length")),
        "logprobs": lambda: (200, {}, with_logprobs()),
        "refusal": lambda: (200, {}, chat(None, "stop", refusal="I cannot help with that.") if openai else
                            messages("", "refusal") | dict(stop_details=dict(type="refusal", explanation="I cannot help with that."))),
        "filter": lambda: (200, {}, chat("", "content_filter")) if openai else (400, {}, err("Output blocked by content filtering policy", "invalid_request_error")),
        "filter_400": lambda: (400, {}, err("The response was filtered by content filtering policy", "invalid_request_error", "content_filter")),
        "429": lambda: (429, {"Retry-After": "7"}, err("slow down", "rate_limit_error")),
        "429_ms": lambda: (429, {"retry-after-ms": "250"}, err("slow down", "rate_limit_error")),
        "429_date": lambda: (429, {"Retry-After": later}, err("slow down", "rate_limit_error")),
        "429_long": lambda: (429, {"Retry-After": "86400"}, err("slow down", "rate_limit_error")),
        "429_bare": lambda: (429, {}, b""),
        "quota": lambda: (429, {}, err("You exceeded your current quota", "insufficient_quota", "insufficient_quota")),
        "broke": lambda: (400, {}, err("Your credit balance is too low to access the API", "invalid_request_error")),
        "no_retry": lambda: (500, {"x-should-retry": "false"}, err("for good", "api_error")),
        "408": lambda: (408, {}, b""), "409": lambda: (409, {}, err("conflict", "invalid_request_error")),
        "500": lambda: (500, {}, err("boom", "api_error")), "503": lambda: (503, {}, b"<html>" + b"x" * 100_000), "529": lambda: (529, {}, err("Overloaded", "overloaded_error")),
        "400": lambda: (400, {}, err("bad\nrequest " + "y" * 5000, "invalid_request_error")), "422": lambda: (422, {}, b"no JSON here"),
        "401": lambda: (401, {}, err(KEY_ECHO.format(key=key), "authentication_error", "invalid_api_key")),
        "403": lambda: (403, {}, err("not allowed with " + key, "permission_error")),
        "404": lambda: (404, {}, err("no model 'tiny'", "not_found_error", "model_not_found")),
        "moved": lambda: (301, {"Location": "http://127.0.0.1:9/v1"}, b""),
        "malformed": lambda: (200, {}, b'{"choices": [{"message": {"content": "half'),
        "html": lambda: (200, {"Content-Type": "text/html"}, b"<html>login</html>"),
        "nothing": lambda: (200, {}, b""),
        "list": lambda: (200, {}, []),
        "nested": lambda: (200, {}, b"[" * 100_000),
        "gzip": lambda: (200, {"Content-Encoding": "gzip"}, b"this is not gzip"),
        "no_choices": lambda: (200, {}, dict(choices=[]) if openai else dict(content=[], stop_reason=None)),
        "null_choices": lambda: (200, {}, dict(choices=None, content=None)),
        "wrong_types": lambda: (200, {}, dict(choices="none", content="none", usage=7)),
        "wrong_text": lambda: (200, {}, dict(choices=[dict(message=dict(content=7))], content=[dict(type="text", text=7)])),
        "error_200": lambda: (200, {}, err("the upstream is gone", "mystery")),
        "error_200_429": lambda: (200, {}, err("slow down", "rate_limit_error", 429)),
        "error_200_401": lambda: (200, {}, err(KEY_ECHO.format(key=key), "authentication_error", 401)),
    }
    return table[step]()


class FaultServer:
    def __init__(self, plan=(), *, delay=0.0, seconds=60.0, most=100_000, port=0):
        self.plan, self.delay, self.seconds, self.most, self.port = list(plan), delay, seconds, most, port
        self.requests = []          # (path, headers, body as JSON value)
        self.in_flight = self.most_in_flight = 0
        self._ready, self._loop, self._stop = threading.Event(), None, None

    @property
    def url(self): return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self):
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the fault server did not start"
        return self

    def __exit__(self, *exc):
        if self._thread.is_alive():
            try: self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError: pass           # it has just stopped by itself
        self._thread.join(10)

    async def _main(self):
        self._loop, self._stop, open_ = asyncio.get_running_loop(), asyncio.Event(), set()
        async def connected(reader, writer):
            task = asyncio.current_task(); open_.add(task)
            try: await self._serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError): pass
            finally:
                open_.discard(task); writer.close()
        server = await asyncio.start_server(connected, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try: await asyncio.wait_for(self._stop.wait(), self.seconds)
        except TimeoutError: pass
        server.close()
        for t in list(open_): t.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    async def _serve(self, reader, writer):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (l.partition(":") for l in lines if l)}
            body = await reader.readexactly(min(int(headers.get("content-length", 0)), 10_000_000))
            path, data = first.split(" ")[1], json.loads(body or b"{}")
            self.requests.append((path, headers, data))
            if len(self.requests) >= self.most: self._stop.set()
            step = self.plan.pop(0) if self.plan else "ok"
            self.in_flight += 1; self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                if self.delay: await asyncio.sleep(self.delay)
                if not await self._respond(step, path, headers, data, writer): return
            finally: self.in_flight -= 1

    async def _respond(self, step, path, headers, data, writer):
        "Answer one request; False when the connection is to be closed"
        if step == "cut": return writer.transport.abort() or False
        if step == "hang": await asyncio.sleep(5); return False
        openai = path.endswith("/chat/completions")
        said = data.get("messages", [{}])[-1].get("content", "")
        key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        status, extra, value = answer("ok" if step in ("cut_body", "drip") else step, openai, f"reply to {said}", key)
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        extra = {"Content-Type": "application/json", "Content-Length": str(len(content))} | extra
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in extra.items()) + "\r\n"
        if step == "cut_body":
            writer.write(head.encode() + content[:20]); await writer.drain(); await asyncio.sleep(0.02)
            return writer.transport.abort() or False
        if step == "drip":
            writer.write(head.encode())
            for i in range(len(content)): writer.write(content[i:i + 1]); await writer.drain(); await asyncio.sleep(0.05)
            return True
        writer.write(head.encode() + content)
        await writer.drain()
        return True


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=float, default=30); ap.add_argument("--delay", type=float, default=0.02)
    ap.add_argument("--port", type=int, default=0); ap.add_argument("--plan", nargs="*", default=[])
    a = ap.parse_args()
    with FaultServer(a.plan, delay=a.delay, seconds=min(a.seconds, 600), port=a.port) as s:
        print(s.url, flush=True)
        s._thread.join()
