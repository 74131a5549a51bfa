#!/usr/bin/env python3
"""Draws the output of the example `consumer` as an animated picture:

cargo run --example consumer | python3 docs/record.py > docs/consumer.svg
"""

import html
import re
import sys

COMMAND = "$ cargo run --example consumer"
LINE_HEIGHT = 20
PAUSE = 5.0

lines = []
time = 0.0
for line in sys.stdin.read().splitlines():
    if line.startswith("storage requests"):
        continue
    started = re.match(r" *([0-9.]+) s  ", line)
    time = float(started[1]) if started else time
    lines.append((time, line))

duration = time + PAUSE
height = LINE_HEIGHT * (len(lines) + 1) + 32
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {height}" width="780" height="{height}">')
print(f"<title>{html.escape(COMMAND)}</title>")
print('<rect width="780" height="100%" rx="8" fill="#1f2328"/>')
print('<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="13" fill="#e6edf3">')
for row, (time, line) in enumerate([(0.0, COMMAND), *lines], start=1):
    color = ' fill="#ff938a"' if "crashes;" in line else ' fill="#7ee787"' if line.startswith(("$", "sent")) else ""
    text = f'<text x="16" y="{16 + LINE_HEIGHT * row - 5}" xml:space="preserve"{color}>{html.escape(line)}'
    if time > 0:
        shown = f"{time / duration:.4f}"
        text += f'<animate attributeName="opacity" values="0;1" keyTimes="0;{shown}" calcMode="discrete"'
        text += f' dur="{duration:.1f}s" repeatCount="indefinite"/>'
    print(text + "</text>")
print("</g>\n</svg>")
