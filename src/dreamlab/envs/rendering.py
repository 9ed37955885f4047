"""Drawing without a screen: finds an OpenGL backend that works and mends shared contexts."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import weakref
from typing import Any

import gymnasium as gym

from dreamlab.core.errors import EnvError

BACKENDS = ("egl", "osmesa")
OFF = ("disable", "disabled", "off", "false", "0")
"""Values of MUJOCO_GL that disable rendering."""
PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><geom size="1" rgba="1 1 1 1"/></worldbody></mujoco>'
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().max() > 0
"""


class CannotDrawError(EnvError, NotImplementedError):
    """Nothing can be drawn here: an error where pixels are observed, else no video is made."""


def probe(backend: str, timeout_s: float = 60) -> bool:
    """Return whether MuJoCo can draw with a backend; in its own process, for it may crash."""
    env = {**os.environ, "MUJOCO_GL": backend}
    env.pop("PYOPENGL_PLATFORM", None)
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, env=env, timeout=timeout_s, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@functools.cache
def find_backend() -> str | None:
    """Return the first backend that draws here, or None; asked once per process."""
    return next((b for b in BACKENDS if probe(b)), None)


def setup_gl(required: bool = True) -> str | None:
    """Choose the OpenGL backend of MuJoCo, unless MUJOCO_GL has chosen; call before importing it.

    Child processes inherit the choice. Without `required` a machine that cannot draw is left as
    it is, for environments that only need drawing for videos.
    """
    if chosen := os.environ.get("MUJOCO_GL"):
        if required and chosen.lower() in OFF:
            raise CannotDrawError(
                f"MUJOCO_GL={chosen} disables rendering. Unset it, or set it to egl"
            )
        return chosen
    backend = find_backend()
    if backend is not None:
        os.environ["MUJOCO_GL"] = backend
    elif required:
        raise CannotDrawError(
            "no OpenGL backend works on this machine (tried: egl, osmesa). Install one, e.g. "
            "`apt install libegl1 libegl-mesa0 libgl1-mesa-dri` or `apt install libosmesa6`, or "
            "set MUJOCO_GL to one that works"
        )
    return backend


def share_context(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Make a MuJoCo environment of Gymnasium draw rightly beside others in one process.

    Its renderer assumes that its OpenGL context is the current one, when it draws and when it is
    freed: with a second environment it draws black frames, and a closed one, collected later, takes
    textures and shadows away from whichever environment drew last.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is None or not hasattr(renderer, "_get_viewer"):
        return env
    get_viewer = renderer._get_viewer

    def current_viewer(render_mode: str | None) -> Any:
        setup_gl()
        viewer = get_viewer(render_mode)
        if render_mode != "human" and "free" not in vars(viewer):
            # Without a reference to the viewer, or it would never be collected.
            viewer.free = functools.partial(_free, viewer.con, viewer.opengl_context)
        _make_current(viewer)
        return viewer

    renderer._get_viewer = current_viewer
    return env


_drawing: weakref.WeakSet[Any] = weakref.WeakSet()  # holds the current OpenGL context


def _make_current(viewer: Any) -> None:
    viewer.make_context_current()
    _drawing.clear()
    if (context := getattr(viewer, "opengl_context", None)) is not None:
        _drawing.add(context)


def _free(scene: Any, context: Any) -> None:
    """Free what MuJoCo keeps in an OpenGL context, then the context; leave the current one so."""
    if context._context is None:
        return  # freed before: by hand, then by the garbage collector
    context.make_current()
    scene.free()
    context.free()
    for current in _drawing - {context}:
        current.make_current()


def draw_fast(model: Any) -> None:
    """Draw a MuJoCo model with small shadows and without antialiasing; call before the first frame.

    In software this is 3 to 5 times faster; pixels differ by about 1 in 255 on average.
    """
    model.vis.quality.shadowsize = 512
    model.vis.quality.offsamples = 0
