"""Train from Python, load the policy from its folder, measure it, and ask it for actions."""

from __future__ import annotations

from dataclasses import replace

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.core.types import Mode
from dreamlab.envs.vector import Envs


def main() -> None:
    overrides = ["+experiment=ppo_cartpole", "training.total_frames=6_000", "eval.video=false"]
    run, status = training.train(load_config(compose(overrides)))
    print(status, run.folder)

    # a folder is all it takes: weights, configuration and normalisation come from it
    trained = training.load_policy(run.folder)
    evaluator = build.build_evaluator(
        replace(trained.config, eval=replace(trained.config.eval, episodes=5))
    )
    print(
        "mean return of 5 episodes:",
        evaluator.run(trained.workflow, trained.statistics).metrics()["eval/return"],
    )

    # one episode by hand, as a robot or a web page would play it
    envs = Envs(replace(trained.config.env, num_envs=1), seed=7)
    envs.normalizer.set_state(trained.statistics)
    envs.normalizer.frozen = True
    step, state, total = envs.reset(), trained.workflow.initial_state(1), 0.0
    while not step.is_last[0]:
        decision = trained.workflow.act(step, state, Mode.EVAL)
        step, state = envs.step(decision.action.numpy()), decision.state
        total += float(envs.raw_reward[0])
    print("return of one episode by hand:", total)
    envs.close()


if __name__ == "__main__":
    main()
