"""openai_client.py PORT: eight greedy answers by OpenAI's client, four at a time, as a line of JSON each."""

import concurrent.futures
import json
import sys

import openai

QUESTIONS = ["What is the capital of France?", "Count from one to ten.", "Write a short poem about rain.",
             "Why is the sky blue?"] * 2
client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")


def ask(question: str) -> str:
    answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": question}],
                                            max_tokens=40, temperature=0, seed=1)
    return answer.choices[0].message.content


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for text in pool.map(ask, QUESTIONS):
        print(json.dumps(text))
