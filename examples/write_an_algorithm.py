"""A complete algorithm in one file: REINFORCE with a baseline (Williams 1992), on CartPole."""

from dataclasses import dataclass

from torch import Tensor, nn

from dreamlab import training
from dreamlab.components.policies.heads import policy_head
from dreamlab.config import compose, load_config
from dreamlab.core.config import Part
from dreamlab.core.optim import optimizer_field
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Phase, Workflow, hook
from dreamlab.nn.mlp import stack
from dreamlab.ops.returns import gae


@dataclass(frozen=True)
class ReinforceConfig:
    """Every default is written here, once; YAML and the command line can change each."""

    hidden: int = 64
    optimizer: Part = optimizer_field("adam", lr=1e-2)
    gamma: float = 0.98


class Reinforce(Workflow[ReinforceConfig]):
    Config = ReinforceConfig

    def build(self, spec: Spec) -> None:
        c, dims = self.config, [spec.obs["state"].size, self.config.hidden]
        self.actor = nn.Sequential(stack(dims, "tanh"), policy_head(c.hidden, spec.action))
        self.critic = nn.Sequential(stack(dims, "tanh"), nn.Linear(c.hidden, 1))
        self.actor_opt = self.optimizer("actor", self.actor.parameters(), c.optimizer)
        self.critic_opt = self.optimizer("critic", self.critic.parameters(), c.optimizer)

    def decide(self, obs: Obs, is_first: Tensor, state: Tree, mode: Mode) -> Decision:
        dist = self.actor(obs["state"])
        return Decision(dist.sample() if mode.samples else dist.mode())

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one step on a rollout [num_envs, t + 1]; its last step only bootstraps."""
        value = self.critic(batch.obs["state"])[..., 0]
        ends = (batch.is_last, batch.is_terminal)
        advantage = gae(batch.reward, value.detach(), *ends, self.config.gamma, lam=1.0)
        real = ~batch.is_last[:, :-1]  # the action of an episode's last step is void
        log_prob = self.actor(batch.obs["state"]).log_prob(batch.action)[:, :-1]
        error = (advantage + value[:, :-1].detach() - value[:, :-1])[real]
        self.critic_opt.step(error.square().mean())
        loss = -(log_prob * advantage / advantage[real].std())[real].mean()
        return {"loss": loss.detach(), "grad_norm": self.actor_opt.step(loss)}


if __name__ == "__main__":
    ours = "workflow={_target_: write_an_algorithm.Reinforce, hidden: 32}"
    node = compose(["+experiment=ppo_cartpole", ours, "training.total_frames=30_000"])
    run, status = training.train(load_config(node))
    print(status, run.manifest["final_eval"]["eval/return"])
