"""Draws docs/uneven.svg: the losses of examples/uneven on unlike workers beside those of one process.

    python docs/curves.py           # three short runs on this machine, half a minute

Ends with an error if they are further apart than rounding explains.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = ROOT / "examples" / "uneven" / "train.py"
RUNS = {
    "one process": [(1, 3, [])],
    "3 workers with weights 4, 1, 1": [(3, 3, ["--weights", "4,1,1"])],
    "4 workers (4, 2, 1, 1), from step 22 on 3 (1, 2, 1) with memory for 20": [
        (4, 1, ["--weights", "4,2,1,1"]),
        (3, 3, ["--weights", "1,2,1", "--memory", "20"]),
    ],
}
"""By name: worlds, each with its size, until which epoch it trains, and its options."""
COLORS = ("#9ecae9", "#e45756", "#222222")
WIDTHS = (9, 4, 1.3)
"""Of the lines, in pixels: they lie on each other."""
MOST_APART = 1e-4
W, H, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 56, 16, 16, 44


def losses(name: str, folder: Path) -> list[float]:
    """The loss of each step, the mean over all samples of all workers."""
    file, checkpoint = folder / f"{name[:3]}.losses", folder / f"{name[:3]}.pt"
    for workers, epochs, options in RUNS[name]:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={workers}",
            TRAIN,
        ]
        command += ["--epochs", epochs, "--losses", file, "--checkpoint", checkpoint, *options]
        subprocess.run([str(word) for word in command], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [json.loads(line)["loss"] for line in file.read_text(encoding="utf-8").splitlines()]


def picture(curves: dict[str, list[float]], apart: float) -> str:
    """All curves in one SVG."""
    steps, highest = len(next(iter(curves.values()))), max(max(curve) for curve in curves.values())

    def x(step: float) -> float:
        return LEFT + (W - LEFT - RIGHT) * step / steps

    def y(loss: float) -> float:
        return H - BOTTOM - (H - TOP - BOTTOM) * loss / (highest * 1.05)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
        f'<rect width="{W}" height="{H}" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{H - BOTTOM}H{W - RIGHT}" fill="none" stroke="#888"/>',
    ]
    parts += [
        f'<text x="{x(step):.0f}" y="{H - BOTTOM + 18}" text-anchor="middle">{step}</text>'
        for step in range(0, steps + 1, 10)
    ]
    parts += [
        f'<text x="{LEFT - 8}" y="{y(tenths / 10) + 4:.0f}" text-anchor="end">{tenths / 10:.1f}</text>'
        for tenths in range(0, int(highest * 10) + 1, 5)
    ]
    parts.append(f'<text x="{(LEFT + W - RIGHT) / 2:.0f}" y="{H - 8}" text-anchor="middle">step</text>')
    parts.append(
        f'<text x="14" y="{H / 2:.0f}" text-anchor="middle" transform="rotate(-90 14 {H / 2:.0f})">loss</text>'
    )
    for at, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in enumerate(curve, start=1))
        style = f'stroke="{COLORS[at]}" stroke-width="{WIDTHS[at]}" fill="none" stroke-linejoin="round"'
        top = TOP + 12 + 22 * at
        parts.append(f'<polyline points="{points}" {style}/>')
        parts.append(f'<path d="M{W / 2 - 100:.0f} {top}h28" {style}/>')
        parts.append(f'<text x="{W / 2 - 64:.0f}" y="{top + 4}">{name}</text>')
    parts.append(f'<text x="{W / 2 - 64:.0f}" y="{TOP + 82}">at most {apart:.0e} apart</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Run, compare, draw."""
    with tempfile.TemporaryDirectory() as folder:
        curves = {name: losses(name, Path(folder)) for name in RUNS}
    alone, *others = curves.values()
    apart = max(abs(a - b) for curve in others for a, b in zip(alone, curve, strict=True))
    print(f"{len(alone)} steps, at most {apart:.2e} apart")
    if apart > MOST_APART:
        sys.exit(f"more than {MOST_APART}: the curves are not those of the same training")
    (ROOT / "docs" / "uneven.svg").write_text(picture(curves, apart), encoding="utf-8")


if __name__ == "__main__":
    main()
