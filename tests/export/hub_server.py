"""A model hub in memory: the endpoints that pushes and downloads of the real client call."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40
TOKEN = "hf_good"


@dataclass
class Repo:
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class HubServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, data: Any, **headers: str) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.create(json.loads(body))
        elif self.path == "/api/validate-yaml":
            self.answer(200, {})
        else:
            _, _, _, owner, name, what, _ = self.path.split("/")
            if what == "preupload":
                self.preupload(json.loads(body))
            else:
                self.commit(f"{owner}/{name}", body)

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] == "strangers":
            return self.answer(403, {"error": "no"})
        known = name in self.server.repos
        private = asked.get("visibility") == "private" or asked.get("private", False)
        self.server.repos.setdefault(name, Repo(private))
        return self.answer(409 if known else 200, {"url": f"{self.server.url}/{name}"})

    def preupload(self, asked: dict[str, Any]) -> None:
        mode = {"uploadMode": "regular", "shouldIgnore": False}
        self.answer(200, {"files": [{"path": f["path"], **mode} for f in asked["files"]]})

    def commit(self, name: str, body: bytes) -> None:
        repo = self.server.repos[name]
        for item in map(json.loads, body.splitlines()):
            value = item["value"]
            if item["key"] == "header":
                repo.messages.append(value["summary"])
            else:
                repo.files[value["path"]] = base64.b64decode(value["content"])
        url = f"{self.server.url}/{name}/commit/{COMMIT}"
        self.answer(200, {"commitUrl": url, "commitOid": COMMIT})

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        repo = self.server.repos.get(name := "/".join(parts[:2]))
        what, revision, *path = [*parts[2:], "", "main"][: max(2, len(parts) - 2)]
        if repo is None:
            self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.answer(404, {"error": "Invalid rev"}, X_Error_Code="RevisionNotFound")
        elif what == "tree":
            files = repo.files.items()
            rows = [{"type": "file", "path": k, "size": len(v), "oid": k} for k, v in files]
            self.answer(200, rows)
        elif what == "resolve":
            self.answer(200, repo.files["/".join(path)], ETag=f'"{path[-1]}"', X_Repo_Commit=COMMIT)
        else:
            siblings = [{"rfilename": k} for k in repo.files]
            about = {"id": name, "sha": COMMIT, "private": repo.private, "siblings": siblings}
            self.answer(200, about)

    do_HEAD = do_GET  # noqa: N815 (the names that http.server looks for)
