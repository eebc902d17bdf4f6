"""Keys of well-known providers, made by chance in the format that each gives out; none is real."""

from __future__ import annotations

import random
import re
import string

_ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "h": "0123456789abcdef",
    "l": string.ascii_lowercase + string.digits,
    "u": string.ascii_uppercase + string.digits,
    "d": string.digits[1:],
}
# `{a34}`: 34 characters of the alphabet a.
FORMATS = {
    "OpenAI": "sk-{a48}",
    "OpenAI, project": "sk-proj-{a40}_{a40}-{a20}",
    "OpenAI, service account": "sk-svcacct-{a60}",
    "Anthropic": "sk-ant-api03-{a90}-{a6}AA",
    "OpenRouter": "sk-or-v1-{h64}",
    "Langfuse": "sk-lf-{h8}-{h4}-{h4}-{h4}-{h12}",
    "Hugging Face": "hf_{a34}",
    "Hugging Face, organisation": "api_org_{a34}",
    "wandb": "wandb_v1_{a80}",
    "GitHub, classic": "ghp_{a36}",
    "GitHub, fine-grained": "github_pat_{a22}_{a59}",
    "GitHub, app": "ghs_{a36}",
    "GitLab": "glpat-{a20}",
    "GitLab, runner": "GR1348941{a20}",
    "GitLab, deploy": "gldt-{a20}",
    "Slack, bot": "xoxb-{d12}-{d12}-{a24}",
    "Slack, app": "xapp-1-A{u10}-{d13}-{h64}",
    "AWS": "AKIA{u16}",
    "AWS, session": "ASIA{u16}",
    "Google": "AIza{a35}",
    "Google, OAuth": "ya29.{a100}",
    "Google, client secret": "GOCSPX-{a28}",
    "Stripe": "sk_live_{a24}",
    "Stripe, restricted": "rk_live_{a24}",
    "SendGrid": "SG.{a22}.{a43}",
    "Mailgun": "key-{h32}",
    "Twilio": "SK{h32}",
    "npm": "npm_{a36}",
    "PyPI": "pypi-AgEIcHlwaS5vcmc{a60}",
    "DigitalOcean": "dop_v1_{h64}",
    "Databricks": "dapi{h32}",
    "Groq": "gsk_{a52}",
    "Replicate": "r8_{a37}",
    "Perplexity": "pplx-{a48}",
    "xAI": "xai-{a80}",
    "Docker": "dckr_pat_{a27}",
    "Vault": "hvs.{a90}",
    "Terraform": "{a14}.atlasv1.{a60}",
    "Notion": "ntn_{a46}",
    "Linear": "lin_api_{a40}",
    "Postman": "PMAK-{h24}-{h34}",
    "Shopify": "shpat_{h32}",
    "Square": "sq0atp-{a22}",
    "NVIDIA": "nvapi-{a64}",
    "Doppler": "dp.pt.{a43}",
    "Telegram": "{d9}:AA{a33}",
    "Grafana": "glsa_{a32}_{h8}",
    "New Relic": "NRAK-{u27}",
    "Atlassian": "ATATT3{a180}",
    "LangSmith": "lsv2_pt_{h32}_{h10}",
    "Pinecone": "pcsk_{a6}_{a60}",
    "Tailscale": "tskey-auth-{a16}-{a32}",
    "Fireworks": "fw_{a24}",
    "Cerebras": "csk-{l48}",
    "Together": "tgp_v1_{a43}",
    "ElevenLabs": "sk_{h48}",
    "Figma": "figd_{a40}",
    "Airtable": "pat{a14}.{h64}",
    "Supabase": "sbp_{h40}",
    "PlanetScale": "pscale_tkn_{a43}",
    "Sentry": "sntrys_{a80}",
    "Azure, signed address": "https://x.blob.core.windows.net/c?sv=2022&sig={a43}%3D",
    "Discord, webhook": "https://discord.com/api/webhooks/{d18}/{a68}",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.{a40}.{a43}",
}


def make_key(name: str, dice: random.Random) -> tuple[str, str]:
    """Return a key of a provider, and its longest random part."""
    parts: list[str] = []

    def fill(match: re.Match[str]) -> str:
        parts.append("".join(dice.choice(_ALPHABETS[match[1]]) for _ in range(int(match[2]))))
        return parts[-1]

    return re.sub(r"\{([a-z])(\d+)\}", fill, FORMATS[name]), max(parts, key=len)
