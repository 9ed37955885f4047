"""A trained agent: raw observations in, actions of its environment out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab import training
from dreamlab.accel.dispatch import reference_kernels
from dreamlab.config import LabConfig
from dreamlab.core.affine import ACTION
from dreamlab.core.config import convert
from dreamlab.core.errors import LabError, unknown
from dreamlab.core.limits import EVAL_SEED, PositiveInt, Seed
from dreamlab.core.rng import Stream
from dreamlab.core.types import Array, ArraySpec, Mode, Spec, Step, Tree
from dreamlab.core.workflow import Workflow
from dreamlab.engine.evaluator import EvalConfig, EvalResult
from dreamlab.engine.video import Films
from dreamlab.envs.action_units import ActionUnits
from dreamlab.envs.normalize import Normalizer
from dreamlab.envs.vector import make_env, make_own_env
from dreamlab.export import hub
from dreamlab.interop import strangers

if TYPE_CHECKING:
    from dreamlab.api.dream import Dream

Observation = Any
"""An array, or a dictionary of arrays; of one environment, or of a batch of them."""


@dataclass(frozen=True)
class AgentState:
    """What an agent remembers between two calls of `predict`; not to be looked into."""

    tree: Tree
    num: int
    single: bool
    """Of one environment that was not in a batch."""


class Agent:
    """A trained policy with all that belongs to it: normalization, action scaling, memory."""

    def __init__(
        self, trained: training.Trained, source: Path | str, trust_code: bool = False, seed: int = 0
    ) -> None:
        self._trained, self.source, self._trust_code = trained, source, trust_code
        self.workflow.eval()
        self._stream = Stream(seed, self.workflow.device)
        env = self.config.env
        self._normalizer = Normalizer(env.normalize_obs, env.normalize_reward, self.spec, 1)
        if trained.statistics:
            self._normalizer.set_state(trained.statistics)
        self._normalizer.frozen = True
        self._units: ActionUnits | None = None
        if env.named:
            with strangers.guarded(Path(source), trust_code):
                probe = make_env(env, 0, 0)
            self._units = ActionUnits(probe)
            probe.close()

    def __repr__(self) -> str:
        name, env = type(self.workflow).__name__, self.config.env.id or "data"
        return f"Agent({name} on {env}, {self._trained.env_frames:,} env frames)"

    @property
    def config(self) -> LabConfig:
        """The configuration it was trained with."""
        return self._trained.config

    @property
    def workflow(self) -> Workflow[Any]:
        """The algorithm with its weights: a torch module on normalized tensors."""
        return self._trained.workflow

    @property
    def spec(self) -> Spec:
        """The names, shapes and types of observations, and what an action is."""
        return self.workflow.spec

    def seed(self, seed: int) -> None:
        """Start a new stream of random numbers, for policies and planners that draw some."""
        self._stream = Stream(seed, self.workflow.device)

    def make_env(self) -> gym.Env[Any, Any]:
        """Return its environment: `predict` takes what it shows and returns what it takes.

        It shows what evaluations show (resized, gray, stacked, named), not normalized. Reset it
        with a seed, as any Gymnasium environment.
        """
        with strangers.guarded(Path(self.source), self._trust_code):
            return make_own_env(self.config.env)

    def predict(
        self,
        obs: Observation,
        state: AgentState | None = None,
        *,
        episode_start: Any = None,
        deterministic: bool | None = None,
    ) -> tuple[Any, AgentState]:
        """Return an action for a raw observation, and the state to hand in with the next one.

        `obs` is what the environment of `make_env` shows: an array, or a dictionary of arrays, of
        one environment or of a batch [n, ...]. The action is in the environment's own units.
        Without a `state` an episode starts; in a batch `episode_start` [n] says whose does.
        `deterministic`: the mode of the policy, or a sample; None does what evaluations of the run
        do. Random numbers are the agent's own, see `seed`.
        """
        arrays, single = self._batch(obs)
        num = len(next(iter(arrays.values())))
        first, tree = self._begin(num, state, episode_start)
        no = np.zeros(num, bool)
        step = Step(arrays, np.zeros(num, np.float32), first, no, no.copy())
        with self._stream, reference_kernels(self.config.accel == "off"):
            decision = self.workflow.act(step, tree, self._mode(deterministic))
        actions = self._own_actions(decision.action.cpu().numpy())
        return (actions[0] if single else actions), AgentState(decision.state, num, single)

    def evaluate(
        self,
        episodes: int = EvalConfig.episodes,
        *,
        seed: int = EVAL_SEED,
        deterministic: bool | None = None,
        video: str | Path | None = None,
    ) -> EvalResult:
        """Play full episodes and return the results; record the first one at `video`.

        This is `dreamlab eval`: the same seed gives the same episodes.
        """
        config = self.config
        sample = config.eval.sample if deterministic is None else not deterministic
        num, start = convert(episodes, PositiveInt, "episodes"), convert(seed, Seed, "seed")
        how = replace(config.eval, episodes=num, seed=start, sample=sample)
        film = video is not None
        result = training.measure(self._trained, Path(self.source), how, film, self._trust_code)
        if video is not None and result.frames:
            result.video = Films(_raise).write(Path(video), result.frames)
        return result

    def imagine(
        self,
        horizon: int = 15,
        state: AgentState | None = None,
        *,
        actions: Any = None,
        context: int | None = None,
        seed: int | None = None,
    ) -> Dream:
        """Let the world model dream on for `horizon` steps, and return what it dreams of.

        A dream starts in a `state` that `predict` returned. Without one, `context` real steps (5)
        are played in the agent's environment from `seed`; afterwards the same actions are carried
        out there too, and `dream.real` holds what came of them. The agent's policy acts, unless
        `actions` are given: [horizon, ...], for a batch [n, horizon, ...].
        """
        from dreamlab.api.dream import from_episode, from_state

        if state is None:
            return from_episode(self, horizon, actions, 5 if context is None else context, seed)
        if context is not None or seed is not None:
            raise LabError("imagine: context and seed have no effect: a state is given")
        return from_state(self, horizon, state, actions)

    # -- in and out -------------------------------------------------------------------------------

    def _mode(self, deterministic: bool | None) -> Mode:
        sample = self.config.eval.sample if deterministic is None else not deterministic
        return Mode.SAMPLE if sample else Mode.EVAL

    def _begin(self, num: int, state: AgentState | None, start: Any) -> tuple[Array, Tree]:
        """Return whose episodes start, and the state of the workflow."""
        if state is None:
            if start is not None and not np.all(start):
                raise LabError("episode_start: without a state every episode begins")
            return np.ones(num, bool), self.workflow.initial_state(num)
        if state.num != num:
            raise LabError(f"state: it is of {state.num} environments, the observation of {num}")
        first = np.zeros(num, bool) if start is None else np.asarray(start, bool)
        if first.shape not in ((), (num,)):
            raise LabError(f"episode_start: expected {num} flags, got shape {first.shape}")
        return np.broadcast_to(first, (num,)).copy(), state.tree

    def _batch(self, obs: Observation) -> tuple[dict[str, Array], bool]:
        """Return observations [n, ...] in the workflow's form, and whether there was only one."""
        spec = self.spec.obs
        named = self._named(obs)
        for name in spec.keys() - named.keys():
            raise LabError(f"obs: {name!r} is missing; expected {', '.join(spec)}")
        for name in named.keys() - spec.keys():
            raise LabError(unknown("observation", str(name), spec, "obs"))
        arrays = {k: _checked(k, np.asarray(named[k]), s) for k, s in spec.items()}
        batches = {a.ndim - len(spec[k].shape) for k, a in arrays.items()}
        if len(batches) > 1:
            raise LabError("obs: some arrays are a batch, others are not")
        single = batches == {0}
        arrays = {k: a[None] if single else a for k, a in arrays.items()}
        if len({len(a) for a in arrays.values()}) > 1:
            sizes = ", ".join(f"{k} {len(a)}" for k, a in arrays.items())
            raise LabError(f"obs: the batches have different sizes: {sizes}")
        if not len(next(iter(arrays.values()))):
            raise LabError("obs: the batch is empty")
        return {k: self._normalizer.scale(k, a) for k, a in arrays.items()}, single

    def _named(self, obs: Observation) -> dict[str, Any]:
        """Return observations by name; an array is the only one that there is."""
        if isinstance(obs, Mapping):
            return dict(obs)
        if len(self.spec.obs) > 1:
            raise LabError(f"obs: expected a dictionary of {', '.join(self.spec.obs)}")
        return {next(iter(self.spec.obs)): obs}

    def _own_actions(self, action: Array) -> Any:
        """Return actions [n, ...] in the environment's own units; a list if they are no arrays."""
        if ACTION in self._normalizer.scaling:
            action = self._normalizer.action(action)
            if self._units is not None and isinstance(space := self._units.space, spaces.Box):
                action = np.clip(action, space.low, space.high)
        own = [a if self._units is None else self._units.own(a) for a in action]
        return own if isinstance(own[0], dict | tuple) else np.stack(own)

    def _plain_actions(self, actions: Sequence[Any]) -> Array:
        """Return actions of the environment as the policy gives them."""
        plain = np.stack([a if self._units is None else self._units.plain(a) for a in actions])
        scaling = self._normalizer.scaling
        return scaling[ACTION].apply(plain) if ACTION in scaling else plain


def _checked(name: str, value: Array, spec: ArraySpec) -> Array:
    """Return an observation in its type; raise if it has another shape, or is not an image."""
    extra = value.ndim - len(spec.shape)
    if extra not in (0, 1) or value.shape[extra:] != spec.shape:
        shape = ", ".join(map(str, spec.shape))
        raise LabError(
            f"obs: {name!r} has shape {value.shape}; expected ({shape}), or (n, {shape}) for a "
            "batch, as agent.make_env() shows it"
        )
    if spec.dtype == "uint8" and value.dtype != np.uint8:
        raise LabError(f"obs: {name!r} is {value.dtype}; expected an image of uint8")
    return np.array(value, spec.dtype)


def _raise(text: str) -> None:
    raise LabError(f"video: {text}")


def load(
    source: str | Path,
    checkpoint: str = "latest",
    *,
    seed: int = 0,
    trust_code: bool = False,
) -> Agent:
    """Return the agent of a run directory, of a hub folder, or of `hub:OWNER/NAME`.

    `checkpoint` is `latest`, `best`, or a name in checkpoints/. `seed` is that of its own random
    numbers, see `Agent.predict`.
    """
    folder = hub.resolve(source)
    return Agent(training.load_policy(folder, checkpoint, trust_code), folder, trust_code, seed)
