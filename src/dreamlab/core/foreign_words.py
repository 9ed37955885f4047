"""Names of options in other programs: one table, consulted for unknown names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dreamlab.core import foreign_answers as say
from dreamlab.core.foreign_answers import Answer, Flat

SB3, CLEANRL, ZOO = "SB3", "CleanRL", "RL Zoo"
DREAMER, TORCH = "dreamerv3", "dreamerv3-torch"
LEROBOT, TDMPC2, RLLAB = "LeRobot", "TD-MPC2", "RL Lab"
BOTH = (SB3, CLEANRL)


@dataclass(frozen=True)
class Word:
    """An option's names in other programs, and its equivalent here."""

    names: tuple[str, ...]
    answer: Callable[[Any, Flat], Answer]
    example: Any
    """Example value."""
    note: str = ""
    """Difference: a unit, a meaning, or why there is no equivalent."""
    programs: tuple[str, ...] = BOTH


def _word(
    names: str, answer: Callable[[Any, Flat], Answer], example: Any, note: str = "", *programs: str
) -> Word:
    return Word(tuple(names.split()), answer, example, note, programs or BOTH)


OPTIMIZERS = tuple(
    f"workflow.{name}" for name in ("optimizer", "model_optimizer", "vae_optimizer")
)  # fmt: skip
LR = tuple(f"{o}.lr" for o in OPTIMIZERS)
FRAMES = "counted in env frames, action repeat included"

WORDS: tuple[Word, ...] = (
    # task and duration
    _word("total_timesteps n_timesteps timesteps total_steps max_timesteps num_timesteps",
          say.length, 100_000, FRAMES, SB3, ZOO, CLEANRL),
    _word("steps run.steps num_steps_total max_steps train_steps num_train_steps num_updates",
          say.length, 100_000, FRAMES + "; updates where nothing is collected",
          DREAMER, TORCH, TDMPC2, LEROBOT),
    _word("env_id gym_id env_name environment env.name env.task env.type task tasks",
          say.task, "CartPole-v1", "", *BOTH, DREAMER, TORCH, TDMPC2, LEROBOT),
    _word("n_envs num_envs run.envs envs env_num parallel_envs",
          say.option("env.num_envs"), 4, "", *BOTH, DREAMER, TORCH),
    _word("logdir log_dir log_path output_dir save_dir work_dir workdir out_dir experiment_dir "
          "checkpoint_dir hydra.run.dir log_folder", say.option("run.dir"), "runs/first",
          "the folder of one run; an existing one is resumed", DREAMER, TORCH, ZOO, LEROBOT),
    _word("exp_name experiment_name run_name job_name experiment.name",
          say.option("name"), "first", "", CLEANRL, TDMPC2, LEROBOT, RLLAB),
    _word("experiment.seed random_seed global_seed", say.option("seed"), 1, "", RLLAB),
    _word("device.type policy.device cuda jax.platform accelerator use_cuda use_gpu",
          say.device, "cuda", "", *BOTH, DREAMER, LEROBOT),
    _word("jax.compute_dtype dtype amp use_amp policy.use_amp mixed_precision fp16 bf16",
          say.dtype, "bfloat16", "fp32 or bf16", DREAMER, TORCH, LEROBOT),
    _word("torch_deterministic", say.switch("deterministic"), True, "", CLEANRL),
    _word("num_threads", say.option("threads"), 1, "", SB3, ZOO),
    # optimizers
    _word("learning_rate lr opt.lr optimizer.lr agent.opt.lr model_lr algorithm.lr base_lr "
          "optimizer_lr policy.optimizer_lr", say.option(*LR), 1e-3, "", *BOTH, DREAMER, LEROBOT),
    _word("pi_lr actor_lr policy_lr learning_rate_actor",
          say.option("workflow.actor_optimizer.lr", "workflow.policy_optimizer.lr", *LR), 3e-4,
          "", CLEANRL, TDMPC2, TORCH),
    _word("q_lr critic_lr value_lr vf_lr learning_rate_critic",
          say.option("workflow.critic_optimizer.lr", *LR), 1e-3, "", CLEANRL, TORCH),
    _word("max_grad_norm grad_clip_norm grad_clip gradient_clip_val clip_grad "
          "optimizer.grad_clip_norm", say.option(*(f"{o}.clip" for o in OPTIMIZERS)), 0.5, "",
          *BOTH, TDMPC2, LEROBOT),
    _word("agc opt.agc agent.opt.agc", say.option("workflow.optimizer.agc"), 0.3, "", DREAMER),
    _word("adam_eps optimizer_eps opt.eps agent.opt.eps",
          say.option(*(f"{o}.eps" for o in OPTIMIZERS)), 1e-5, "", CLEANRL, DREAMER),
    _word("weight_decay l2 optimizer.weight_decay policy.optimizer_weight_decay",
          say.option(*(f"{o}.weight_decay" for o in OPTIMIZERS)), 1e-6, "", *BOTH, LEROBOT),
    _word("warmup opt.warmup agent.opt.warmup num_warmup_steps scheduler_warmup_steps "
          "policy.scheduler_warmup_steps scheduler.num_warmup_steps",
          say.option(*(f"{o}.warmup_steps" for o in OPTIMIZERS)), 500, "", DREAMER, LEROBOT),
    _word("anneal_lr lr_schedule", say.anneal, True, "", CLEANRL),
    _word("gradient_accumulation_steps accumulate_grad_batches",
          say.option("training.accumulate"), 2, "", LEROBOT),
    # returns and losses
    _word("gamma discount discount_factor", say.gamma, 0.99,
          "of DreamerV3 the horizon 1 / (1 - gamma)", *BOTH),
    _word("gae_lambda lambda lam return_lambda discount_lambda imag_loss.lam agent.imag_loss.lam",
          say.option("workflow.returns.lam", "workflow.lam"), 0.95, "", *BOTH, DREAMER, TORCH),
    _word("ent_coef entropy_coef entropy_coefficient actent imag_loss.actent "
          "agent.imag_loss.actent actor.entropy alpha",
          say.option("workflow.entropy_coef", "workflow.entropy", "workflow.alpha"), 0.01,
          "of SAC the first temperature, which is learnt", *BOTH, DREAMER, TORCH),
    _word("vf_coef value_coef value_loss_coef", say.option("workflow.value_coef"), 0.5),
    _word("clip_range clip_coef clip_ratio clip_param", say.option("workflow.clip"), 0.2),
    _word("clip_range_vf clip_vloss", say.option("workflow.clip_value"), 0.2),
    _word("n_epochs update_epochs num_epochs ppo_epochs", say.option("workflow.epochs"), 10),
    _word("norm_adv normalise_advantage",
          say.option("workflow.normalize_advantage"), True, "", CLEANRL),
    _word("target_entropy ent_target", say.option("workflow.target_entropy"), -1.0),
    _word("tau polyak target_smoothing soft_target_tau slow_target_fraction slowvalue.rate "
          "agent.slowvalue.rate",
          say.option("workflow.tau", "workflow.slow_rate", "workflow.critic.tau"), 0.005,
          "", *BOTH, DREAMER, TORCH),
    _word("target_update_interval target_network_frequency target_update_freq",
          say.option("workflow.target_every_gradient_steps", change=say.gradient_steps), 1_000,
          "counted in gradient steps instead of env steps"),
    _word("policy_delay policy_frequency", say.option("workflow.actor_every"), 2),
    _word("exploration_initial_eps start_e", say.option("workflow.epsilon"), 1.0),
    _word("exploration_final_eps end_e", say.option("workflow.epsilon_final"), 0.05),
    _word("exploration_fraction",
          say.option("workflow.epsilon_decisions", change=say.decisions), 0.1,
          "a number of decisions instead of a share"),
    # data
    _word("buffer_size replay_size replay.size replay_capacity memory_size buffer_capacity",
          say.of_buffer("capacity", say.whole), 50_000, "", *BOTH, DREAMER, TDMPC2),
    _word("batch_size minibatch_size mini_batch_size", say.batch, 32,
          "steps of a gradient step for PPO and DQN, else windows of a batch",
          *BOTH, DREAMER, LEROBOT, TDMPC2),
    _word("batch_length sequence_length seq_len replay_length",
          say.of_buffer("length", say.with_context), 32, "", DREAMER, TORCH),
    _word("n_steps num_steps rollout_length steps_per_epoch n_rollout_steps", say.rollout, 64,
          "steps of each environment between two updates"),
    _word("learning_starts seed_steps start_steps prefill warmup_steps start_timesteps "
          "random_steps", say.starts, 1_000, FRAMES, *BOTH, TDMPC2, TORCH),
    _word("train_ratio run.train_ratio replay_ratio",
          say.of_phase("train_ratio"), 32, "replayed steps per decision", DREAMER, TORCH),
    _word("gradient_steps utd_ratio utd updates_per_step num_updates_per_step",
          say.of_phase("train_ratio", say.ratio), 1,
          "replayed steps per decision: gradient steps x batch x length"),
    _word("train_freq train_frequency update_every train_every",
          say.of_phase("train_ratio", say.ratio_of_period), 4,
          "replayed steps per decision: batch x length / train_freq"),
    _word("dataset.repo_id dataset.root dataset_path dataset data_dir data_path dataset_dir",
          say.option("buffers.*.path", change=say.data_path), "data/pusht",
          "a folder on this machine", LEROBOT, RLLAB),
    _word("dataset.episodes", say.option("buffers.*.episodes"), 10, "the first so many", LEROBOT),
    # networks
    _word("policy_kwargs net_arch hidden_sizes hidden_dims fc_dims",
          say.option("workflow.network.hidden", "workflow.actor.hidden", "workflow.policy.hidden",
                     change=say.layers), [64, 64]),
    _word("model_size size agent.size", say.size, "1m", "", DREAMER, TDMPC2),
    _word("imag_length imag_horizon horizon_imagine agent.imag_length",
          say.option("workflow.imagine"), 15, "", DREAMER, TORCH),
    _word("dyn_deter dyn.rssm.deter agent.dyn.rssm.deter",
          say.option("workflow.rssm.deter"), 512, "", DREAMER, TORCH),
    _word("dyn_stoch dyn.rssm.stoch agent.dyn.rssm.stoch",
          say.option("workflow.rssm.stoch"), 32, "", DREAMER, TORCH),
    _word("dyn_discrete dyn.rssm.classes agent.dyn.rssm.classes",
          say.option("workflow.rssm.classes"), 32, "", DREAMER, TORCH),
    _word("policy.type policy_type", say.option("workflow.policy._target_"), "diffusion",
          "diffusion, flow, gaussian, autoregressive, categorical", LEROBOT),
    _word("policy.horizon chunk_size policy.chunk_size", say.option("workflow.policy.horizon"), 16,
          "", LEROBOT),
    _word("policy.n_action_steps n_action_steps", say.option("workflow.policy.execute"), 1, "",
          LEROBOT),
    _word("policy.n_obs_steps n_obs_steps", say.option("workflow.policy.obs_steps"), 1, "",
          LEROBOT),
    # environments
    _word("action_repeat frame_skip env.dmc.repeat env.atari.repeat repeat",
          say.option("env.repeat"), 2, "", *BOTH, DREAMER, TORCH),
    _word("frame_stack n_stack num_stack", say.option("env.frame_stack"), 4, "", SB3, ZOO),
    _word("time_limit max_episode_steps episode_length env.max_episode_steps",
          say.option("env.time_limit"), 500, "in decisions", TORCH, CLEANRL),
    _word("env.atari.size env.dmc.size env.crafter.size image_size",
          say.option("env.size"), [64, 64], "", DREAMER, TORCH),
    _word("norm_obs normalize_observation vec_normalize",
          say.fixed({"env.normalize_obs.clip": 10.0}), True, "", SB3, ZOO),
    _word("norm_reward", say.fixed({"env.normalize_reward.clip": 10.0}), True, "", SB3, ZOO),
    # evaluation, checkpoints, logs
    _word("eval_freq eval_interval eval_every run.eval_every eval_env_freq evaluate_every",
          say.every("eval"), 10_000, FRAMES + ", those of all environments",
          *BOTH, DREAMER, TDMPC2, LEROBOT),
    _word("n_eval_episodes eval_episodes eval_num_episodes eval_episode_num eval.n_episodes "
          "run.eval_eps num_eval_episodes", say.option("eval.episodes"), 5, "", *BOTH, LEROBOT),
    _word("n_eval_envs eval.batch_size run.eval_envs", say.option("eval.num_envs"), 2, "",
          SB3, LEROBOT),
    _word("eval_deterministic deterministic_eval",
          lambda value, flat: {"eval.sample": str(value).lower() == "false"}, True, "", SB3),
    _word("capture_video save_video record_video video_freq", say.switch("eval.video"), True, "",
          CLEANRL, TDMPC2),
    _word("save_freq save_interval save_model save_agent checkpoint_freq save_every_steps",
          say.every("checkpoint"), 10_000, FRAMES, SB3, ZOO, LEROBOT),
    _word("run.save_every save_every", say.option("checkpoint.every_s"), 900, "in seconds",
          DREAMER),
    _word("log_interval log_freq run.log_every log_every logging_freq", say.every("log"), 1_000,
          FRAMES, *BOTH, DREAMER, LEROBOT),
    _word("verbose progress_bar", say.fixed({"log.terminal": "plain"}), 1, "", SB3),
    _word("tensorboard_log tensorboard", say.switch("log.tensorboard"), True,
          "written into the run directory", SB3, ZOO),
    _word("track use_wandb enable_wandb wandb.enable wandb", say.switch("log.wandb"), True, "",
          CLEANRL, ZOO, LEROBOT, TDMPC2),
    _word("wandb_project_name wandb_project wandb.project project",
          say.wandb("log.wandb_project"), "robots", "",
          CLEANRL, ZOO, LEROBOT, TDMPC2),
    _word("wandb_entity wandb.entity entity", say.wandb("log.wandb_entity"), "team",
          "", CLEANRL, ZOO, LEROBOT, TDMPC2),
    _word("wandb_tags tags", say.option("run.tags"), ["first"], "", ZOO),
    _word("from_checkpoint pretrained_path policy.path load_run trained_agent run.from_checkpoint "
          "training.resume_path policy.pretrained_path",
          say.option("start", change=lambda value, flat: {"run": str(value)}), "runs/first",
          "a run directory; to resume a run: dreamlab resume", ZOO, DREAMER, LEROBOT, RLLAB),
    # no option here
    _word("use_sde sde_sample_freq", say.none, True, "no policy here explores so", SB3),
    _word("optimize_memory_usage", say.none, True, "a replay stores each step once already", SB3),
    _word("vec_env vec_env_type", say.option("env.vector", change=say.vector), "subproc", "", ZOO),
    _word("num_workers dataset.num_workers", say.none, 4, "one thread gets batches ready", LEROBOT),
    _word("push_to_hub policy.push_to_hub policy.repo_id", say.none, False,
          "dreamlab export-policy RUN --hub FOLDER --push OWNER/NAME", LEROBOT),
)  # fmt: skip
BY_NAME = {name: word for word in WORDS for name in word.names}


# -- asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The equivalent of another program's option."""

    word: Word
    answer: Answer

    @property
    def text(self) -> str:
        """Return the explanation, as part of a sentence."""
        note = f" ({self.word.note})" if self.word.note else ""
        if not self.answer:
            why = self.word.note or "this algorithm has no such option"
            return f"no option says that here: {why}"
        return f"here it is {' and '.join(self.answer)}{note}"


def find(name: str, value: Any, flat: Flat) -> Found | None:
    """Find the equivalent of another program's option; None if unknown."""
    for part in _endings(name):
        if word := BY_NAME.get(part):
            try:
                answer = word.answer(value, flat)
            except (TypeError, ValueError):  # a value of the wrong type
                answer = word.answer(word.example, flat)
            return Found(word, {k.removesuffix("._target_"): v for k, v in answer.items()})
    return None


def _endings(name: str) -> Iterator[str]:
    """Yield a dotted name as other programs may spell it: whole, then without leading parts."""
    parts = name.lower().lstrip("+~-").replace("-", "_").split(".")
    for i in range(len(parts)):
        yield ".".join(parts[i:])


def spoken(path: str, value: Any) -> dict[str, Any]:
    """Flatten a nested value to single options: `wandb.enable` in `wandb`."""
    takes_options = path in BY_NAME and isinstance(BY_NAME[path].example, list)  # policy_kwargs
    if not isinstance(value, Mapping) or not value or takes_options:
        return {path: value}
    return {k: v for key, own in value.items() for k, v in spoken(f"{path}.{key}", own).items()}
