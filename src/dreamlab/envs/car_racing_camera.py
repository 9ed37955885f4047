"""Draws CarRacing's observations faster: the same pictures, without what cannot be seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from dreamlab.core.types import Array
from dreamlab.envs.compat import need

MARGIN = 3
"""Pixels around the window in which a polygon is still drawn: edges are rounded and smoothed."""
GRASS = range(-20, 20, 2)
TEXT_SIZE = 42


class Camera:
    """Stands in for the environment's `_render`; other pictures than observations are its own.

    Gymnasium transforms every patch of grass and every tile of the track in Python, 700 of them, of
    which about 30 are in view; it loads a font and draws the score anew each time. Here one matrix
    product finds those in view, which are drawn as before: every byte of the picture is the same.
    While the environment's `drawing` is False, the last picture is shown again.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.game: Any = need("gymnasium.envs.box2d.car_racing", "box2d")
        self.pygame: Any = need("pygame", "box2d")
        self.window = self.pygame.Surface((self.game.WINDOW_W, self.game.WINDOW_H))
        self.low = np.array([0, self.game.WINDOW_H / 8])  # the rows before are the instruments'
        self.high = np.array([self.game.WINDOW_W, self.game.WINDOW_H])
        self.turned = self.window.copy()
        self.patches = self._patches()
        self.grass = _circles(self.patches)
        self.road: Any = None
        self.track: list[Any] | None = None
        self.text: tuple[str, Any] | None = None
        self.last: Array | None = None
        env.drawing = True

    def __call__(self, mode: str) -> Any:
        if mode != "state_pixels":
            return type(self.env)._render(self.env, mode)
        if self.env.drawing or self.last is None:
            self.last = self.draw()
        return self.last

    def draw(self) -> Array:
        """Return the observation of the environment as it is now."""
        env, game, vector = self.env, self.game, self.pygame.math.Vector2
        angle, (x, y) = -env.car.hull.angle, env.car.hull.position
        # the expressions of Gymnasium, so that rounding is the same
        zoom = 0.1 * game.SCALE * max(1 - env.t, 0) + game.ZOOM * game.SCALE * min(env.t, 1)
        moved = vector((-x * zoom, -y * zoom)).rotate_rad(angle)
        shift = (game.WINDOW_W / 2 + moved[0], game.WINDOW_H / 4 + moved[1])
        env.surf = self.window
        self._draw_field(zoom, shift, angle)
        self._draw_polygons(zoom, shift, angle)
        env.car.draw(env.surf, zoom, shift, angle, False)
        env.surf = self._flipped()
        env._render_indicators(game.WINDOW_W, game.WINDOW_H)
        self._draw_score()
        return env._create_image_array(env.surf, (game.STATE_W, game.STATE_H))

    def _draw_field(self, zoom: float, shift: tuple[float, float], angle: float) -> None:
        """Fill the window with grass; where the end of the world is in view, it is a polygon."""
        env, end = self.env, self.game.PLAYFIELD
        width, height = self.window.get_size()
        corners = np.array([(0, 0), (width, 0), (width, height), (0, height)]) - shift
        if (np.abs(corners @ _rotation(angle)) < (end - 1) * zoom).all():
            self.window.fill([int(c) for c in env.bg_color])
            return
        self.window.fill(0)
        field = [(end, end), (end, -end), (-end, -end), (-end, end)]
        env._draw_colored_polygon(env.surf, field, env.bg_color, zoom, shift, angle, clip=False)

    def _draw_polygons(self, zoom: float, shift: tuple[float, float], angle: float) -> None:
        env = self.env
        if self.track is not env.road_poly:  # a new list for every episode
            self.track, self.road = env.road_poly, _circles([p for p, _ in env.road_poly])
        for i in self._in_view(self.grass, zoom, shift, angle):
            patch = self.patches[i]
            env._draw_colored_polygon(env.surf, patch, env.grass_color, zoom, shift, angle)
        for i in self._in_view(self.road, zoom, shift, angle):
            polygon, color = env.road_poly[i]
            shade = [int(c) for c in color]
            env._draw_colored_polygon(env.surf, polygon, shade, zoom, shift, angle)

    def _in_view(
        self, circles: Array, zoom: float, shift: tuple[float, float], angle: float
    ) -> list[int]:
        """Return which polygons may touch the window, by the circles around them, in order."""
        center = circles[:, :2] @ _rotation(angle).T * zoom + shift
        reach = circles[:, 2:] * zoom + MARGIN
        inside = (center > self.low - reach) & (center < self.high + reach)
        return np.flatnonzero(inside.all(1)).tolist()

    def _flipped(self) -> Any:
        """Return the window upside down; a surface made anew each time is twice as slow."""
        pixels = self.pygame.surfarray.pixels2d
        pixels(self.turned)[:] = pixels(self.window)[:, ::-1]
        return self.turned

    def _draw_score(self) -> None:
        game, shown = self.game, f"{self.env.reward:04.0f}"
        if self.text is None or self.text[0] != shown:
            self.pygame.font.init()
            font = self.pygame.font.Font(self.pygame.font.get_default_font(), TEXT_SIZE)
            self.text = shown, font.render(shown, True, (255, 255, 255), (0, 0, 0))
        place = self.text[1].get_rect()
        place.center = (60, game.WINDOW_H - game.WINDOW_H * 2.5 / 40.0)
        self.env.surf.blit(self.text[1], place)

    def _patches(self) -> list[Any]:
        """Return the patches of grass."""
        d = self.game.GRASS_DIM
        return [
            [(d * x + d, d * y + 0), (d * x + 0, d * y + 0), (d * x + 0, d * y + d),
             (d * x + d, d * y + d)]
            for x in GRASS for y in GRASS
        ]  # fmt: skip


def _rotation(angle: float) -> Array:
    """Return the matrix that turns column vectors by an angle."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _circles(polygons: list[Any]) -> Array:
    """Return center and radius of a circle around each polygon of four corners."""
    corners = np.array(polygons, np.float64)
    center = corners.mean(1)
    radius = np.linalg.norm(corners - center[:, None], axis=-1).max(1)
    return np.concatenate([center, radius[:, None]], 1)
