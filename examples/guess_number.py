"""A game of TextArena: an environment of twenty lines. A kill costs no move of it.

    pip install textarena
    holdfast run examples/guess_number.py --tasks examples/guess_number.jsonl --samples 4

After a kill, the game begins again with its seed, and the recorded moves are repeated in it.
"""

import random

import textarena

import holdfast


class Game(holdfast.Environment):
    inline = True  # The game draws from Python's only random generator: one game at a time does.

    def reset(self, *, seed: int) -> str:
        random.seed(seed)
        self._game = textarena.make("GuessTheNumber-v0")
        self._game.reset(num_players=1, seed=seed)
        self._shown = 0
        return self._news()

    def step(self, action: str) -> holdfast.Observation:
        done, _ = self._game.step(action)
        if not done:
            return holdfast.Observation(self._news())
        rewards, info = self._game.close()
        return holdfast.Observation(str(info[0].get("reason", "")), rewards[0], done=True)

    def _news(self) -> str:
        """What the game says that the model has not seen: it repeats itself at each turn."""
        _, text = self._game.get_observation()
        news, self._shown = text[self._shown :], len(text)
        return str(news)


play = holdfast.EnvironmentRolloutProcessor(lambda task: Game(), max_turns=20, max_tokens=600)
