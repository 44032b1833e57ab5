# %% [markdown]
# # graph
# %%
print(1)
