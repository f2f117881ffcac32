# SPDX-License-Identifier: Apache-2.0
"""What tools/prepare_data.py is made of: how text, chats and images become what a run reads."""
