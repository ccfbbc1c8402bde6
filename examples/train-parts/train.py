"""The trainer from parts: a decoder, tokens, an optimiser of your own choice, and a callback that you wrote."""

import sys

import torch

from windlass import train


class Samples(train.TrainerCallback):
    """Writes a few bytes with the model now and then."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self):
        if self.trainer.step % self.every == 0 and self.trainer.world.is_main:
            model = self.trainer.module.model
            model.eval()
            tokens_BT = torch.tensor([list(b"def ")])
            with torch.no_grad():
                for _ in range(24):
                    next_B1 = model(tokens_BT)[:, -1].argmax(dim=-1, keepdim=True)
                    tokens_BT = torch.cat((tokens_BT, next_B1), dim=1)
            print(f"step {self.trainer.step}:", bytes(tokens_BT[0].clamp(max=255).tolist()), flush=True)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    world = train.World.begin("auto")
    attention = train.AttentionConfig(num_heads=2)
    model = train.Decoder(
        train.ModelConfig(d_model=64, num_layers=2, vocab_size=258, hidden=192, attention=attention)
    ).to(world.device)
    train.init_weights(model, seed=0)
    data = train.DataConfig(
        sources=(train.SourceConfig(path=(__file__,)),),
        tokenizer=train.TokenizerConfig(path="bytes"),
        sequence_length=64,
        batch_tokens=512,
    )
    loader = train.build_loader(data, seed=0, share=world.share, vocab_size=258)
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    trainer = train.Trainer(
        train.LanguageModule(model, optimizer, world=world),
        loader,
        duration=train.Duration.steps(steps),
        schedule=train.CosineConfig(warmup=train.Duration.steps(10)),
        store=train.open_store("checkpoints", world),
        callbacks={"samples": Samples(every=steps // 4)},
        world=world,
    )
    outcome = trainer.fit()
    print(outcome.end, "after", outcome.step, "steps")
    world.end()


if __name__ == "__main__":
    main()
