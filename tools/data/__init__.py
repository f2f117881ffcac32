# SPDX-License-Identifier: Apache-2.0
"""What tools/prepare_data.py is made of: how text and chats become the files that a run reads."""
