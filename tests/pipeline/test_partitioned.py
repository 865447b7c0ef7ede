"""Runs whose topology is cut into blocks of rows: the parameters of the whole graph's run, whatever happens on the way."""

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import millrace as mr
from millrace.pipeline.clock import Clock
from millrace.pipeline.config import read_toml, resolve
from millrace.pipeline.events import EpochDone, Note, StepDone, silent
from millrace.pipeline.one_rank import take_part
from millrace.pipeline.prepare import Outline, configure, make_system, prepare, prepare_part
from millrace.pipeline.queues import own_queue
from millrace.pipeline.rank import Interrupted
from millrace.stages.partition.stage import open_part, partition_dataset
from millrace.tests.contracts.command import command
from millrace.tests.contracts.gang import run_ranks
from millrace.tests.pipeline.test_cluster import digest
