"""The alternatives that people use, for the scenario `handover`: their servers, and contenders that use them."""
