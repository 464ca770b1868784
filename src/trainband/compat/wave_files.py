"""Sounds as summaries."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from tensorboardX.proto.summary_pb2 import Summary


def wave_proto(sound: Any, rate: float) -> Any:
    """A sound, [frames, channels], as a WAV file of 16 bits."""
    samples = (np.clip(sound, -1, 1) * 32767).astype("<i2")
    frames, channels = samples.shape
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(max(1, round(rate)))
        writer.writeframes(samples.tobytes())
    return Summary.Audio(
        sample_rate=rate,
        num_channels=channels,
        length_frames=frames,
        content_type="audio/wav",
        encoded_audio_string=file.getvalue(),
    )
