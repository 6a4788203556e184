"""What people use instead, for the scenario `handover`: their servers, and contenders that use them."""
